variable "region" {
  description = "AWS region."
  type        = string
  default     = "eu-west-1"
  validation {
    condition     = can(regex("^[a-z]+(-[a-z]+)+-[0-9]+$", var.region))
    error_message = "region must be a region such as eu-west-1."
  }
}

variable "gpu_instance_type" {
  description = "Instance type of GPU machines: g4dn (T4), g5 (A10G) or g6 (L4)."
  type        = string
  default     = "g4dn.xlarge"
  validation {
    condition     = can(regex("^(g4dn|g5|g6)\\.[0-9]*xlarge$", var.gpu_instance_type))
    error_message = "gpu_instance_type must be of g4dn, g5 or g6, such as g4dn.xlarge: workers use one GPU each."
  }
}

variable "cpu_instance_type" {
  description = "Instance type of CPU workers and of training on CPUs."
  type        = string
  default     = "c7i.xlarge"
  validation {
    condition     = can(regex("^[a-z]+[0-9][a-z-]*\\.[a-z0-9]+$", var.cpu_instance_type)) && !can(regex("^[a-z]+[0-9]g", var.cpu_instance_type))
    error_message = "cpu_instance_type must be an x86 type, such as c7i.xlarge: the images are for amd64."
  }
}

variable "network_range" {
  description = "Addresses of the network; the machines have the second half."
  type        = string
  default     = "10.80.0.0/23"
  validation {
    condition     = can(cidrsubnet(var.network_range, 1, 1)) && can(regex("^(10|172|192)\\.", var.network_range))
    error_message = "network_range must be a private range, such as 10.80.0.0/23."
  }
}

variable "finetune_pool_size" {
  description = "Fewest and most machines that train, for CPUs and for GPUs. min 0 costs nothing, and trains on CPUs only."
  type        = object({ min = number, max = number })
  default     = { min = 0, max = 1 }
  validation {
    condition     = var.finetune_pool_size.min >= 0 && var.finetune_pool_size.max >= max(1, var.finetune_pool_size.min)
    error_message = "finetune_pool_size needs 0 <= min <= max, and max of 1 or more."
  }
}
