# 1.9 or newer: the conditions of variables name other variables.
terraform {
  required_version = ">= 1.9"

  required_providers {
    google = { source = "hashicorp/google", version = "~> 6.50" }
    random = { source = "hashicorp/random", version = "~> 3.7" }
    tls    = { source = "hashicorp/tls", version = "~> 4.1" }
  }

  # terraform init -backend-config=backend.tfvars
  backend "gcs" {}
}

provider "google" {
  project        = var.project_id
  region         = var.region
  zone           = var.zone
  default_labels = { app = var.name }
}

# Fails early, and with its name, if an API is off or may not be turned on.
resource "google_project_service" "apis" {
  for_each = toset([
    "artifactregistry", "cloudbuild", "compute", "iam", "iap", "logging", "monitoring", "secretmanager", "storage",
  ])
  service            = "${each.key}.googleapis.com"
  disable_on_destroy = false
}
