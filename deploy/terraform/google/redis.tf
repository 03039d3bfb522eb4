# Redis on a machine of its own, not Memorystore. Memorystore for Redis saves at most hourly, or (Basic) not at all, and
# would lose accepted jobs; it has one password for everybody. This one keeps an append-only file on a disk that outlives
# the machine, and gives workers and apps their own users. It is one machine: while it restarts, jobs wait.
resource "google_compute_disk" "redis" {
  name       = "${var.name}-redis"
  type       = "pd-balanced"
  size       = var.redis_disk_gb
  zone       = var.zone
  depends_on = [google_project_service.apis]
}

resource "google_compute_instance" "redis" {
  count                     = var.running ? 1 : 0
  name                      = "${var.name}-redis"
  machine_type              = var.redis_machine_type
  zone                      = var.zone
  tags                      = ["${var.name}-redis"]
  allow_stopping_for_update = true
  boot_disk {
    initialize_params {
      image = local.machine_image
      size  = 20
    }
  }
  attached_disk {
    source      = google_compute_disk.redis.id
    device_name = "redis"
  }
  network_interface {
    subnetwork = google_compute_subnetwork.pool.id
  }
  service_account {
    email  = google_service_account.machine["redis"].email
    scopes = ["cloud-platform"]
  }
  # Read at the next boot: a change does not replace the machine.
  metadata   = merge(local.metadata, { startup-script = module.machine.scripts["redis"] })
  depends_on = [google_secret_manager_secret_version.pool, google_secret_manager_secret_iam_member.reader, google_compute_router_nat.pool]
}
