locals {
  machine_image = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
  metadata      = { enable-oslogin = "TRUE", block-project-ssh-keys = "TRUE" }
  registry      = "${var.region}-docker.pkg.dev/${var.project_id}/${google_artifact_registry_repository.images.repository_id}"
  load_metric   = "custom.googleapis.com/${var.name}/queue_jobs"

  gpu_machine_type = coalesce(var.gpu_machine_type, {
    nvidia-tesla-t4   = "n1-standard-4"
    nvidia-tesla-v100 = "n1-standard-8"
    nvidia-l4         = "g2-standard-8"
  }[var.accelerator_type])

  pool_size = {
    worker-cpu   = var.cpu_pool_size
    worker-gpu   = var.gpu_pool_size
    finetune-cpu = var.finetune_pool_size
    finetune-gpu = var.finetune_pool_size
  }

  # The machine's name in Google's internal DNS.
  redis_host = "${var.name}-redis.${var.zone}.c.${var.project_id}.internal"
}

module "machine" {
  source        = "../machine"
  cloud         = "google"
  name          = var.name
  running       = var.running
  use_gpu       = var.use_gpu
  images        = var.images
  nvidia_driver = var.nvidia_driver
  settings      = var.settings
  redis_host    = local.redis_host
  redis_disk    = "/dev/disk/by-id/google-redis"
  constants     = { project = var.project_id, load_metric = local.load_metric }
}

module "pool" {
  source   = "./pool"
  for_each = module.machine.pools

  name            = "${var.name}-${each.key}"
  zone            = var.zone
  machine_type    = each.value.gpu ? local.gpu_machine_type : var.cpu_machine_type
  accelerator     = each.value.gpu ? var.accelerator_type : null
  size            = local.pool_size[each.key]
  use_spot        = var.use_spot
  disk_gb         = var.disk_gb
  machine_image   = local.machine_image
  subnetwork      = google_compute_subnetwork.pool.id
  tags            = ["${var.name}-${each.value.role}"]
  service_account = google_service_account.machine[each.value.role].email
  metadata        = local.metadata
  startup_script  = module.machine.scripts[each.key]
  scaling = {
    metric           = local.load_metric
    queue            = each.value.queue
    jobs_per_machine = each.value.role == "finetune" ? 1 : var.jobs_per_machine[each.value.gpu ? "gpu" : "cpu"]
  }
  depends_on = [google_secret_manager_secret_version.pool, google_secret_manager_secret_iam_member.reader, google_compute_router_nat.pool]
}

module "api" {
  source = "./pool"
  count  = var.running && var.api_machines > 0 ? 1 : 0

  name            = "${var.name}-api"
  zone            = var.zone
  machine_type    = "e2-medium"
  size            = { min = var.api_machines, max = var.api_machines }
  use_spot        = false
  disk_gb         = 30
  machine_image   = local.machine_image
  subnetwork      = google_compute_subnetwork.pool.id
  tags            = ["${var.name}-api"]
  service_account = google_service_account.machine["api"].email
  metadata        = local.metadata
  startup_script  = module.machine.scripts["api"]
  health_check    = google_compute_region_health_check.api.id
  depends_on      = [google_secret_manager_secret_version.pool, google_secret_manager_secret_iam_member.reader, google_compute_router_nat.pool]
}

# Not /v1/readyz, which needs a ready worker. Without one the API still returns results.
resource "google_compute_region_health_check" "api" {
  name                = "${var.name}-api"
  region              = var.region
  check_interval_sec  = 10
  unhealthy_threshold = 6
  http_health_check {
    port         = 8000
    request_path = "/v1/healthz"
  }
  depends_on = [google_project_service.apis]
}

resource "google_compute_region_backend_service" "api" {
  count                           = length(module.api)
  name                            = "${var.name}-api"
  region                          = var.region
  protocol                        = "TCP"
  load_balancing_scheme           = "INTERNAL"
  health_checks                   = [google_compute_region_health_check.api.id]
  connection_draining_timeout_sec = 90 # longer than KRONOS_API_WAIT_S
  backend {
    group          = module.api[0].instance_group
    balancing_mode = "CONNECTION"
  }
}

resource "google_compute_forwarding_rule" "api" {
  count                 = length(module.api)
  name                  = "${var.name}-api"
  region                = var.region
  load_balancing_scheme = "INTERNAL"
  backend_service       = google_compute_region_backend_service.api[0].id
  subnetwork            = google_compute_subnetwork.pool.id
  ports                 = ["8000"]
  allow_global_access   = true
}
