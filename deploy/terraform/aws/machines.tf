# Ubuntu 24.04, as Canonical publishes it.
data "aws_ssm_parameter" "machine_image" {
  name = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
}

locals {
  pool_size = {
    worker-cpu   = var.cpu_pool_size
    worker-gpu   = var.gpu_pool_size
    finetune-cpu = var.finetune_pool_size
    finetune-gpu = var.finetune_pool_size
  }
  redis_address = cidrhost(aws_subnet.machines.cidr_block, 10)

  # cloud-init writes the script once, and runs it at every boot.
  user_data = {
    for service, script in module.machine.scripts : service => join("\n", ["#cloud-config", yamlencode({
      write_files = [{
        path        = "/var/lib/cloud/scripts/per-boot/kronos"
        permissions = "0700"
        encoding    = "gz+b64"
        content     = base64gzip(script)
      }]
    })])
  }
}

module "machine" {
  source        = "../machine"
  cloud         = "aws"
  name          = var.name
  running       = var.running
  use_gpu       = var.use_gpu
  images        = var.images
  nvidia_driver = var.nvidia_driver
  settings      = var.settings
  redis_host    = local.redis_address
  redis_disk    = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_${replace(aws_ebs_volume.redis.id, "-", "")}"
  constants     = { region = var.region, file_system = aws_efs_file_system.pool.dns_name }
}

module "pool" {
  source   = "./pool"
  for_each = module.machine.pools

  name             = "${var.name}-${each.key}"
  instance_type    = each.value.gpu ? var.gpu_instance_type : var.cpu_instance_type
  size             = local.pool_size[each.key]
  use_spot         = var.use_spot
  disk_gb          = var.disk_gb
  machine_image    = data.aws_ssm_parameter.machine_image.insecure_value
  subnet           = aws_subnet.machines.id
  security_group   = aws_security_group.machines.id
  instance_profile = aws_iam_instance_profile.machine[each.value.role].name
  user_data        = base64encode(local.user_data[each.key])
  namespace        = var.name
  queue            = each.value.queue
  jobs_per_machine = each.value.role == "finetune" ? 1 : var.jobs_per_machine[each.value.gpu ? "gpu" : "cpu"]
  warm_up_s        = each.value.gpu ? 900 : 300
  depends_on       = [aws_iam_role_policy.machine, aws_efs_mount_target.pool, aws_route_table_association.pool]
}

# One machine each, which AWS restarts on other hardware if its own fails.
resource "aws_instance" "single" {
  for_each               = var.running ? { redis = local.redis_address, api = cidrhost(aws_subnet.machines.cidr_block, 11) } : {}
  ami                    = data.aws_ssm_parameter.machine_image.insecure_value
  instance_type          = "t3.medium"
  subnet_id              = aws_subnet.machines.id
  private_ip             = each.value
  vpc_security_group_ids = [aws_security_group.machines.id]
  iam_instance_profile   = aws_iam_instance_profile.machine[each.key].name
  user_data_base64       = base64encode(local.user_data[each.key])
  # cloud-init writes the script at a machine's first boot alone.
  user_data_replace_on_change = true
  tags                        = { Name = "${var.name}-${each.key}" }
  root_block_device {
    volume_size = 30
    encrypted   = true
  }
  metadata_options {
    http_tokens = "required"
  }
  lifecycle {
    ignore_changes = [ami]
  }
  depends_on = [aws_iam_role_policy.machine, aws_efs_mount_target.pool, aws_route_table_association.pool]
}

resource "aws_ebs_volume" "redis" {
  availability_zone = aws_subnet.machines.availability_zone
  size              = var.redis_disk_gb
  type              = "gp3"
  encrypted         = true
}

resource "aws_volume_attachment" "redis" {
  count       = var.running ? 1 : 0
  device_name = "/dev/sdf"
  volume_id   = aws_ebs_volume.redis.id
  instance_id = aws_instance.single["redis"].id
  # A mounted disk cannot be detached.
  stop_instance_before_detaching = true
}
