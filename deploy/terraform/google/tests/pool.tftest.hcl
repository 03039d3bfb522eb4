# terraform init -backend=false && terraform test      needs Terraform 1.11 and no account: nothing is created
mock_provider "google" {}
mock_provider "random" {
  override_during = plan
  mock_resource "random_password" {
    defaults = { result = "Passw0rd" }
  }
}
mock_provider "tls" {
  override_during = plan
  mock_resource "tls_private_key" {
    defaults = { private_key_pem = "KEY" }
  }
  mock_resource "tls_self_signed_cert" {
    defaults = { cert_pem = "CERTIFICATE" }
  }
}

variables {
  project_id = "my-project-123"
  images = {
    api  = "europe-west4-docker.pkg.dev/my-project-123/kronos/api@sha256:0000000000000000000000000000000000000000000000000000000000000000"
    cpu  = "europe-west4-docker.pkg.dev/my-project-123/kronos/worker-cpu@sha256:1111111111111111111111111111111111111111111111111111111111111111"
    cuda = "europe-west4-docker.pkg.dev/my-project-123/kronos/worker-cuda@sha256:2222222222222222222222222222222222222222222222222222222222222222"
  }
}

run "gpu" {
  command = plan
  assert {
    condition     = toset(keys(module.machine.pools)) == toset(["worker-cpu", "worker-gpu", "finetune-cpu", "finetune-gpu"])
    error_message = "With GPUs there are four pools."
  }
  assert {
    condition     = local.gpu_machine_type == "n1-standard-4"
    error_message = "A T4 needs a machine of n1."
  }
  assert {
    condition     = one(google_compute_instance.redis).attached_disk[0].device_name == "redis"
    error_message = "Redis needs its own disk."
  }
}

run "l4" {
  command = plan
  variables {
    accelerator_type = "nvidia-l4"
  }
  assert {
    condition     = local.gpu_machine_type == "g2-standard-8"
    error_message = "An L4 needs a machine of g2."
  }
}

run "cpu" {
  command = plan
  variables {
    use_gpu = false
    images = {
      api = "europe-west4-docker.pkg.dev/my-project-123/kronos/api@sha256:0000000000000000000000000000000000000000000000000000000000000000"
      cpu = "europe-west4-docker.pkg.dev/my-project-123/kronos/worker-cpu@sha256:1111111111111111111111111111111111111111111111111111111111111111"
    }
  }
  assert {
    condition     = toset(keys(module.machine.pools)) == toset(["worker-cpu", "finetune-cpu"])
    error_message = "Without GPUs there are the two pools of CPUs."
  }
}

run "idle" {
  command = plan
  variables {
    running = false
    images  = null
  }
  assert {
    condition     = length(module.pool) + length(module.api) + length(google_compute_instance.redis) == 0
    error_message = "Nothing runs while running is false."
  }
}

run "unusable_values" {
  command = plan
  variables {
    project_id         = "My Project"
    region             = "europe"
    name               = "Kronos"
    accelerator_type   = "nvidia-tesla-k80"
    nvidia_driver      = 470
    cpu_machine_type   = "t2a-standard-4"
    cpu_pool_size      = { min = 3, max = 2 }
    gpu_pool_size      = { min = 0, max = 0 }
    finetune_pool_size = { min = -1, max = 1 }
    jobs_per_machine   = { cpu = 0, gpu = 1 }
    disk_gb            = 10
    api_machines       = 1.5
    redis_disk_gb      = 1
    subnet_range       = "8.8.8.0/24"
    allowed_networks   = ["10.0.0.0/16", "0.0.0.0/0"]
    cloud_build_user   = "ada@example.org"
    settings           = { KRONOS_REDIS_URL = "redis://elsewhere" }
    images             = { api = "kronos-api:latest", cpu = "kronos-worker:cpu", cuda = "kronos-worker:cuda" }
  }
  expect_failures = [
    var.project_id, var.region, var.name, var.accelerator_type, var.nvidia_driver, var.cpu_machine_type, var.cpu_pool_size, var.gpu_pool_size, var.finetune_pool_size, var.jobs_per_machine,
    var.disk_gb, var.api_machines, var.redis_disk_gb, var.subnet_range, var.allowed_networks, var.cloud_build_user,
    var.settings, var.images,
  ]
}

run "unusable_together" {
  command = plan
  variables {
    zone             = "us-central1-a"
    gpu_machine_type = "g2-standard-4"
    images = {
      api = "europe-west4-docker.pkg.dev/my-project-123/kronos/api@sha256:0000000000000000000000000000000000000000000000000000000000000000"
      cpu = "europe-west4-docker.pkg.dev/my-project-123/kronos/worker-cpu@sha256:1111111111111111111111111111111111111111111111111111111111111111"
    }
  }
  expect_failures = [var.zone, var.gpu_machine_type, var.images]
}

run "running_without_images" {
  command = plan
  variables {
    images = null
  }
  expect_failures = [var.running]
}
