output "api_url" {
  description = "The HTTP API, for allowed_networks."
  value       = one([for rule in google_compute_forwarding_rule.api : "http://${rule.ip_address}:8000"])
}

output "redis_host" {
  description = "Redis's name, which its certificate also has. Apps outside this network need a DNS entry for it."
  value       = local.redis_host
}

output "redis_certificate" {
  description = "For KRONOS_REDIS_CA_FILE of your apps."
  value       = module.machine.redis_certificate
}

output "buckets" {
  value = { for key, bucket in google_storage_bucket.folder : key => bucket.name }
}

output "script_settings" {
  description = "For scripts/*.sh."
  value = join("\n", [
    for key, value in {
      project       = var.project_id
      region        = var.region
      zone          = var.zone
      name          = var.name
      use_gpu       = var.use_gpu
      finetune_min  = var.finetune_pool_size.min
      registry      = local.registry
      build_account = google_service_account.build.id
      build_bucket  = google_storage_bucket.build.name
    } : "${key}='${value}'"
  ])
}
