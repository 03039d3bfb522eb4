# One account for each kind of machine, which may do what its machines need.
resource "google_service_account" "machine" {
  for_each     = toset(["api", "worker", "finetune", "redis"])
  account_id   = "${var.name}-${each.key}"
  display_name = "Kronos: ${each.key}"
  depends_on   = [google_project_service.apis]
}

# The figures that the pools are scaled by.
resource "google_project_iam_member" "api_metrics" {
  project = var.project_id
  role    = "roles/monitoring.metricWriter"
  member  = google_service_account.machine["api"].member
}

resource "google_artifact_registry_repository" "images" {
  repository_id = var.name
  location      = var.region
  format        = "DOCKER"
  description   = "Kronos: images of workers and API"
  depends_on    = [google_project_service.apis]
}

resource "google_artifact_registry_repository_iam_member" "reader" {
  for_each   = toset(["api", "worker", "finetune"])
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.reader"
  member     = google_service_account.machine[each.key].member
}

# Folders of both buckets are renamed as a whole, as the model folder requires: so they have the hierarchical namespace.
resource "google_storage_bucket" "folder" {
  for_each                    = toset(["models", "data"])
  name                        = "${var.project_id}-${var.name}-${each.key}"
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  hierarchical_namespace {
    enabled = true
  }
  depends_on = [google_project_service.apis]
}

resource "google_storage_bucket_iam_member" "machine" {
  for_each = {
    "models worker"   = "roles/storage.objectViewer"
    "models finetune" = "roles/storage.objectUser"
    "models api"      = "roles/storage.objectViewer"
    "data finetune"   = "roles/storage.objectViewer"
    "data api"        = "roles/storage.objectUser"
  }
  bucket = google_storage_bucket.folder[split(" ", each.key)[0]].name
  role   = each.value
  member = google_service_account.machine[split(" ", each.key)[1]].member
}

# scripts/build_images.sh builds as this account: it may write images and logs, and read the sources.
resource "google_service_account" "build" {
  account_id   = "${var.name}-build"
  display_name = "Kronos: build"
  depends_on   = [google_project_service.apis]
}

resource "google_artifact_registry_repository_iam_member" "build" {
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.writer"
  member     = google_service_account.build.member
}

resource "google_storage_bucket" "build" {
  name                        = "${var.project_id}-${var.name}-build"
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = true
  lifecycle_rule {
    condition {
      age = 7
    }
    action {
      type = "Delete"
    }
  }
  depends_on = [google_project_service.apis]
}

resource "google_storage_bucket_iam_member" "build" {
  bucket = google_storage_bucket.build.name
  role   = "roles/storage.objectUser"
  member = google_service_account.build.member
}

resource "google_project_iam_member" "build_logs" {
  project = var.project_id
  role    = "roles/logging.logWriter"
  member  = google_service_account.build.member
}

resource "google_project_iam_member" "cloud_build_user" {
  count   = var.cloud_build_user == "" ? 0 : 1
  project = var.project_id
  role    = "roles/cloudbuild.builds.editor"
  member  = var.cloud_build_user
}

resource "google_service_account_iam_member" "cloud_build_user" {
  count              = var.cloud_build_user == "" ? 0 : 1
  service_account_id = google_service_account.build.name
  role               = "roles/iam.serviceAccountUser"
  member             = var.cloud_build_user
}

resource "google_storage_bucket_iam_member" "cloud_build_user" {
  count  = var.cloud_build_user == "" ? 0 : 1
  bucket = google_storage_bucket.build.name
  role   = "roles/storage.objectUser"
  member = var.cloud_build_user
}
