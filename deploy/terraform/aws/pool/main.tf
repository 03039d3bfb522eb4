# A group of equal machines that grows and shrinks with its queue.
terraform {
  required_providers {
    aws = { source = "hashicorp/aws" }
  }
}

resource "aws_launch_template" "machine" {
  name_prefix            = "${var.name}-"
  image_id               = var.machine_image
  instance_type          = var.instance_type
  user_data              = var.user_data
  vpc_security_group_ids = [var.security_group]
  update_default_version = true
  iam_instance_profile {
    name = var.instance_profile
  }
  block_device_mappings {
    device_name = "/dev/sda1"
    ebs {
      volume_size           = var.disk_gb
      volume_type           = "gp3"
      encrypted             = "true"
      delete_on_termination = "true"
    }
  }
  metadata_options {
    http_tokens = "required"
  }
}

resource "aws_autoscaling_group" "pool" {
  name                = var.name
  min_size            = var.size.min
  max_size            = var.size.max
  vpc_zone_identifier = [var.subnet]
  enabled_metrics     = ["GroupInServiceInstances"]
  mixed_instances_policy {
    instances_distribution {
      on_demand_percentage_above_base_capacity = var.use_spot ? 0 : 100
      spot_allocation_strategy                 = "price-capacity-optimized"
    }
    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.machine.id
        version            = aws_launch_template.machine.latest_version
      }
    }
  }
  instance_refresh {
    strategy = "Rolling"
  }
  tag {
    key                 = "Name"
    value               = var.name
    propagate_at_launch = true
  }
}

# Without fresh figures the pool keeps its size. At 0 machines a waiting job starts one.
resource "aws_autoscaling_policy" "pool" {
  name                      = var.name
  autoscaling_group_name    = aws_autoscaling_group.pool.name
  policy_type               = "TargetTrackingScaling"
  estimated_instance_warmup = var.warm_up_s
  target_tracking_configuration {
    target_value = var.jobs_per_machine
    customized_metric_specification {
      metrics {
        id          = "jobs"
        return_data = false
        metric_stat {
          stat = "Maximum"
          metric {
            namespace   = var.namespace
            metric_name = "queue_jobs"
            dimensions {
              name  = "queue"
              value = var.queue
            }
          }
        }
      }
      metrics {
        id          = "machines"
        return_data = false
        metric_stat {
          stat = "Average"
          metric {
            namespace   = "AWS/AutoScaling"
            metric_name = "GroupInServiceInstances"
            dimensions {
              name  = "AutoScalingGroupName"
              value = aws_autoscaling_group.pool.name
            }
          }
        }
      }
      # Without machines, any waiting job is above the target.
      metrics {
        id          = "per_machine"
        expression  = "IF(machines > 0, jobs / machines, jobs * ${var.jobs_per_machine * 2})"
        return_data = true
      }
    }
  }
}
