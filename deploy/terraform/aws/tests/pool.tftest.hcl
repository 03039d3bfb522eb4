# terraform init -backend=false && terraform test      needs Terraform 1.11 and no account: nothing is created
mock_provider "aws" {
  override_during = plan
  mock_resource "aws_subnet" {
    defaults = { availability_zone = "eu-west-1a", cidr_block = "10.80.1.0/24" }
  }
  mock_resource "aws_efs_file_system" {
    defaults = { dns_name = "fs-0123.efs.eu-west-1.amazonaws.com" }
  }
  mock_resource "aws_ebs_volume" {
    defaults = { id = "vol-0123456789abcdef0" }
  }
  mock_resource "aws_ssm_parameter" {
    defaults = { arn = "arn:aws:ssm:eu-west-1:123456789012:parameter/kronos/secret" }
  }
}
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
  images = {
    api  = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/kronos/api@sha256:0000000000000000000000000000000000000000000000000000000000000000"
    cpu  = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/kronos/worker-cpu@sha256:1111111111111111111111111111111111111111111111111111111111111111"
    cuda = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/kronos/worker-cuda@sha256:2222222222222222222222222222222222222222222222222222222222222222"
  }
}

run "gpu" {
  command = plan
  assert {
    condition     = toset(keys(module.pool)) == toset(["worker-cpu", "worker-gpu", "finetune-cpu", "finetune-gpu"])
    error_message = "With GPUs there are four pools."
  }
  assert {
    condition     = alltrue([for text in values(local.user_data) : length(text) < 15000])
    error_message = "EC2 takes 16 KB of user data, and the real certificate is longer than this one."
  }
  assert {
    condition     = alltrue([for machine in aws_instance.single : machine.user_data_replace_on_change])
    error_message = "cloud-init would not write the script of a new image."
  }
  assert {
    condition     = one(aws_volume_attachment.redis).stop_instance_before_detaching
    error_message = "A mounted disk cannot be detached: tearing down would wait for it in vain."
  }
}

run "cpu" {
  command = plan
  variables {
    use_gpu = false
    images = {
      api = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/kronos/api@sha256:0000000000000000000000000000000000000000000000000000000000000000"
      cpu = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/kronos/worker-cpu@sha256:1111111111111111111111111111111111111111111111111111111111111111"
    }
  }
  assert {
    condition     = toset(keys(module.pool)) == toset(["worker-cpu", "finetune-cpu"])
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
    condition     = length(module.pool) + length(aws_instance.single) == 0
    error_message = "Nothing runs while running is false."
  }
}

run "unusable_values" {
  command = plan
  variables {
    region             = "europe"
    name               = "Kronos"
    gpu_instance_type  = "p2.xlarge"
    nvidia_driver      = 470
    cpu_instance_type  = "c7g.xlarge"
    cpu_pool_size      = { min = 3, max = 2 }
    gpu_pool_size      = { min = 0, max = 0 }
    finetune_pool_size = { min = -1, max = 1 }
    jobs_per_machine   = { cpu = 0, gpu = 1 }
    disk_gb            = 10
    redis_disk_gb      = 1
    network_range      = "8.8.8.0/24"
    allowed_networks   = ["0.0.0.0/0"]
    settings           = { PATH = "/" }
    images             = { api = "kronos-api:latest", cpu = "kronos-worker:cpu", cuda = "kronos-worker:cuda" }
  }
  expect_failures = [
    var.region, var.name, var.gpu_instance_type, var.nvidia_driver, var.cpu_instance_type, var.cpu_pool_size,
    var.gpu_pool_size, var.finetune_pool_size, var.jobs_per_machine, var.disk_gb, var.redis_disk_gb,
    var.network_range, var.allowed_networks, var.settings, var.images,
  ]
}
