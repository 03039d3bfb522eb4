# No machine has an external address. They reach out by NAT; people come in by IAP, apps from allowed_networks.
resource "google_compute_network" "pool" {
  name                    = var.name
  auto_create_subnetworks = false
  depends_on              = [google_project_service.apis]
}

resource "google_compute_subnetwork" "pool" {
  name                     = var.name
  network                  = google_compute_network.pool.id
  ip_cidr_range            = var.subnet_range
  private_ip_google_access = true
}

resource "google_compute_router" "pool" {
  name    = var.name
  network = google_compute_network.pool.id
}

resource "google_compute_router_nat" "pool" {
  name                               = var.name
  router                             = google_compute_router.pool.name
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"
}

locals {
  firewall = {
    # Google's ranges for IAP's tunnels, and for health checks.
    ssh    = { ports = ["22"], from = ["35.235.240.0/20"], to = ["api", "redis", "worker", "finetune"] }
    health = { ports = ["8000"], from = ["35.191.0.0/16", "130.211.0.0/22"], to = ["api"] }
    api    = { ports = ["8000"], from = concat([var.subnet_range], var.allowed_networks), to = ["api"] }
    redis  = { ports = ["6379"], from = concat([var.subnet_range], var.allowed_networks), to = ["redis"] }
  }
}

resource "google_compute_firewall" "allow" {
  for_each      = local.firewall
  name          = "${var.name}-${each.key}"
  network       = google_compute_network.pool.id
  direction     = "INGRESS"
  source_ranges = each.value.from
  target_tags   = [for role in each.value.to : "${var.name}-${role}"]
  allow {
    protocol = "tcp"
    ports    = each.value.ports
  }
}
