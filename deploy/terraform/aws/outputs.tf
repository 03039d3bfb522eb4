output "api_url" {
  description = "The HTTP API, for allowed_networks."
  value       = one([for key, machine in aws_instance.single : "http://${machine.private_ip}:8000" if key == "api"])
}

output "redis_host" {
  value = local.redis_address
}

output "redis_certificate" {
  description = "For KRONOS_REDIS_CA_FILE of your apps."
  value       = module.machine.redis_certificate
}

output "script_settings" {
  description = "For scripts/*.sh."
  value = join("\n", [
    for key, value in {
      region   = var.region
      name     = var.name
      use_gpu  = var.use_gpu
      registry = trimsuffix(aws_ecr_repository.images["api"].repository_url, "/api")
    } : "${key}='${value}'"
  ])
}
