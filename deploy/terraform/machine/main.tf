# What the machines of any cloud start: one script for each service, and the secrets that they read. It makes nothing
# but passwords and a certificate.
terraform {
  required_providers {
    random = { source = "hashicorp/random" }
    tls    = { source = "hashicorp/tls" }
  }
}

locals {
  # The pools by their service in docker-compose.yml.
  all_pools = {
    worker-cpu   = { queue = "cpu", gpu = false, role = "worker" }
    worker-gpu   = { queue = "gpu", gpu = true, role = "worker" }
    finetune-cpu = { queue = "cpu.finetune", gpu = false, role = "finetune" }
    finetune-gpu = { queue = "gpu.finetune", gpu = true, role = "finetune" }
  }
  pools = { for service, pool in local.all_pools : service => pool if var.running && (var.use_gpu || !pool.gpu) }

  # Empty means that the machine needs none.
  services = merge(
    {
      redis = { image = "", driver = "", secret_files = [], folders = [], ports = "" }
      api = {
        image        = try(var.images.api, "")
        driver       = ""
        secret_files = ["redis_url=app-redis-url", "api_keys=api-keys", "metrics_key=metrics-key"]
        folders      = ["models", "data"]
        ports        = "ports: !override ['8000:8000']"
      }
    },
    {
      for service, pool in local.pools : service => {
        image        = pool.gpu ? try(var.images.cuda, "") : try(var.images.cpu, "")
        driver       = pool.gpu ? tostring(var.nvidia_driver) : ""
        secret_files = ["redis_url=worker-redis-url"]
        folders      = pool.role == "finetune" ? ["models", "data"] : ["models"]
        ports        = ""
      }
    },
  )

  # A preempted machine has 30 s: forecasts get 15 s to end before they go back to the queue, training 20 s to save.
  settings = merge(
    {
      KRONOS_DRAIN_TIMEOUT_S  = "15"
      KRONOS_FINETUNE_GRACE_S = "20"
      KRONOS_LOG_FORMAT       = "json"
      KRONOS_REDIS_CA_FILE    = "/etc/kronos/redis.pem"
    },
    var.settings,
  )

  scripts = {
    for service, given in local.services : service => join("\n", concat(
      ["#!/usr/bin/env bash"],
      [
        for key, value in merge(
          var.constants,
          {
            service           = service
            driver            = given.driver
            name_prefix       = var.name
            registry          = given.image
            folders           = join(" ", given.folders)
            secret_files      = join(" ", given.secret_files)
            redis_disk        = var.redis_disk
            redis_certificate = base64gzip(tls_self_signed_cert.redis.cert_pem)
          },
          # A change of these must not restart Redis.
          service == "redis" ? {} : {
            compose_file     = base64gzip(file("${path.module}/../../../docker-compose.yml"))
            environment_file = base64gzip(join("", [for name, text in local.settings : "${name}=${text}\n"]))
            override_file = base64gzip(templatefile("${path.module}/override.yml", {
              service = service, image = given.image, ports = given.ports
            }))
          },
        ) : "${key}='${value}'"
      ],
      [file("${path.module}/${var.cloud}.sh"), file("${path.module}/start.sh")],
    ))
  }
}

# The state holds these too: keep its bucket private.
resource "random_password" "generated" {
  for_each = toset(["kronos-app", "kronos-worker", "kronos-flower", "api_key", "metrics_key"])
  length   = 40
  special  = false # it becomes part of a URL
}

# Redis's certificate, which its clients trust by itself.
resource "tls_private_key" "redis" {
  algorithm   = "ECDSA"
  ecdsa_curve = "P256"
}

resource "tls_self_signed_cert" "redis" {
  private_key_pem       = tls_private_key.redis.private_key_pem
  dns_names             = can(cidrhost("${var.redis_host}/32", 0)) ? null : [var.redis_host]
  ip_addresses          = can(cidrhost("${var.redis_host}/32", 0)) ? [var.redis_host] : null
  is_ca_certificate     = true
  set_subject_key_id    = true
  set_authority_key_id  = true
  validity_period_hours = 24 * 365 * 5
  early_renewal_hours   = 24 * 90 # the next apply makes a new one; then restart the machines
  allowed_uses          = ["cert_signing", "digital_signature", "server_auth"]
  subject {
    common_name = "Kronos Redis"
  }
}

locals {
  password = { for key, generated in random_password.generated : key => generated.result }

  redis_url = {
    for user in ["kronos-app", "kronos-worker"] :
    user => "rediss://${user}:${local.password[user]}@${var.redis_host}:6379/0"
  }

  # The roles that may read each secret, and its content.
  secret_readers = {
    redis-users      = ["redis"]
    redis-tls-key    = ["redis"]
    worker-redis-url = ["worker", "finetune"]
    app-redis-url    = ["api"]
    api-keys         = ["api"]
    metrics-key      = ["api"]
  }
  secrets = {
    redis-users = join("", [
      for line in regexall("(?m)^user .*$", file("${path.module}/../../redis-users.acl")) :
      "${replace(line, ">PASSWORD", ">${lookup(local.password, split(" ", line)[1], "")}")}\n"
    ])
    redis-tls-key    = tls_private_key.redis.private_key_pem
    worker-redis-url = local.redis_url["kronos-worker"]
    app-redis-url    = local.redis_url["kronos-app"]
    api-keys         = "${local.password["api_key"]}\n${local.password["metrics_key"]}:metrics"
    metrics-key      = local.password["metrics_key"]
  }
}

output "pools" { value = local.pools }
output "scripts" { value = local.scripts }
output "redis_certificate" { value = tls_self_signed_cert.redis.cert_pem }
output "secret_readers" { value = local.secret_readers }
output "secrets" {
  value     = local.secrets
  sensitive = true
}
