resource "google_secret_manager_secret" "pool" {
  for_each  = module.machine.secret_readers
  secret_id = "${var.name}-${each.key}"
  replication {
    auto {}
  }
  depends_on = [google_project_service.apis]
}

resource "google_secret_manager_secret_version" "pool" {
  for_each    = module.machine.secret_readers
  secret      = google_secret_manager_secret.pool[each.key].id
  secret_data = module.machine.secrets[each.key]
}

resource "google_secret_manager_secret_iam_member" "reader" {
  for_each = merge([
    for key, roles in module.machine.secret_readers : { for role in roles : "${key} ${role}" => { key = key, role = role } }
  ]...)
  secret_id = google_secret_manager_secret.pool[each.value.key].id
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.machine[each.value.role].member
}
