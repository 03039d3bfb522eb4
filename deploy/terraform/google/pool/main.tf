# A group of equal machines that grows and shrinks with its queue, or has a fixed size.
terraform {
  required_providers {
    google = { source = "hashicorp/google" }
  }
}

resource "google_compute_instance_template" "machine" {
  name_prefix  = "${var.name}-"
  machine_type = var.machine_type
  tags         = var.tags
  metadata     = merge(var.metadata, { startup-script = var.startup_script })
  disk {
    source_image = var.machine_image
    disk_size_gb = var.disk_gb
    disk_type    = "pd-balanced"
    boot         = true
  }
  network_interface {
    subnetwork = var.subnetwork
  }
  service_account {
    email  = var.service_account
    scopes = ["cloud-platform"]
  }
  dynamic "guest_accelerator" {
    for_each = var.accelerator == null ? [] : [var.accelerator]
    content {
      type  = guest_accelerator.value
      count = 1
    }
  }
  # A machine with a GPU cannot move to another host, nor can a Spot machine.
  scheduling {
    provisioning_model  = var.use_spot ? "SPOT" : "STANDARD"
    preemptible         = var.use_spot
    automatic_restart   = !var.use_spot
    on_host_maintenance = var.use_spot || var.accelerator != null ? "TERMINATE" : "MIGRATE"
  }
  lifecycle {
    create_before_destroy = true
  }
}

resource "google_compute_instance_group_manager" "pool" {
  name               = var.name
  zone               = var.zone
  base_instance_name = var.name
  target_size        = var.scaling == null ? var.size.min : null
  version {
    instance_template = google_compute_instance_template.machine.self_link_unique
  }
  # A new image replaces one machine at a time: the old one ends its jobs or gives them back. GPUs are scarce, so no
  # machine is added meanwhile.
  update_policy {
    type                  = "PROACTIVE"
    minimal_action        = "REPLACE"
    max_surge_fixed       = var.accelerator == null ? 1 : 0
    max_unavailable_fixed = var.accelerator == null ? 0 : 1
  }
  dynamic "auto_healing_policies" {
    for_each = var.health_check == null ? [] : [var.health_check]
    content {
      health_check      = auto_healing_policies.value
      initial_delay_sec = 900
    }
  }
}

# Without fresh figures the pool keeps its size. At 0 machines a waiting job starts one.
resource "google_compute_autoscaler" "pool" {
  count  = var.scaling == null ? 0 : 1
  name   = var.name
  zone   = var.zone
  target = google_compute_instance_group_manager.pool.id
  autoscaling_policy {
    min_replicas    = var.size.min
    max_replicas    = var.size.max
    cooldown_period = var.accelerator == null ? 300 : 900
    metric {
      name                       = var.scaling.metric
      filter                     = "resource.type = \"global\" AND metric.labels.queue = \"${var.scaling.queue}\""
      single_instance_assignment = var.scaling.jobs_per_machine
    }
    # One at a time.
    scale_in_control {
      time_window_sec = var.accelerator == null ? 600 : 900
      max_scaled_in_replicas {
        fixed = 1
      }
    }
  }
}

output "instance_group" {
  value = google_compute_instance_group_manager.pool.instance_group
}
