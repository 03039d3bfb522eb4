variable "project_id" {
  description = "The Google Cloud project, with billing enabled."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project_id))
    error_message = "project_id must be a project's id (not its name or number), such as my-project-123."
  }
}

variable "region" {
  description = "Region of the network, the registry and the buckets."
  type        = string
  default     = "europe-west4"
  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region must be a region such as europe-west4."
  }
}

variable "zone" {
  description = "Zone of all machines. It must have the GPU: gcloud compute accelerator-types list"
  type        = string
  default     = "europe-west4-a"
  validation {
    condition     = can(regex("^${var.region}-[a-z]$", var.zone))
    error_message = "zone must lie in the region, such as europe-west4-a."
  }
}

variable "accelerator_type" {
  description = "GPU of each GPU machine: nvidia-tesla-t4, nvidia-l4 or nvidia-tesla-v100."
  type        = string
  default     = "nvidia-tesla-t4"
  validation {
    condition     = contains(["nvidia-tesla-t4", "nvidia-l4", "nvidia-tesla-v100"], var.accelerator_type)
    error_message = "accelerator_type must be nvidia-tesla-t4, nvidia-l4 or nvidia-tesla-v100."
  }
}

variable "gpu_machine_type" {
  description = "Machine type of GPU machines. Default: n1-standard-4 for T4, n1-standard-8 for V100, g2-standard-8 for L4."
  type        = string
  default     = null
  validation {
    condition = var.gpu_machine_type == null ? true : startswith(
      var.gpu_machine_type, var.accelerator_type == "nvidia-l4" ? "g2-" : "n1-"
    )
    error_message = "gpu_machine_type must be of g2 for nvidia-l4, and of n1 for nvidia-tesla-t4 and nvidia-tesla-v100."
  }
}

variable "cpu_machine_type" {
  description = "Machine type of CPU workers and of training on CPUs."
  type        = string
  default     = "n2-standard-4"
  validation {
    condition     = can(regex("^[a-z0-9]+-[a-z0-9-]+$", var.cpu_machine_type)) && !startswith(var.cpu_machine_type, "t2a-") && !startswith(var.cpu_machine_type, "c4a-")
    error_message = "cpu_machine_type must be an x86 machine type, such as n2-standard-4: the images are for amd64."
  }
}

variable "finetune_pool_size" {
  description = "Fewest and most machines that train, for CPUs and for GPUs. min 0 costs nothing, and trains on a GPU only by run_training.sh."
  type        = object({ min = number, max = number })
  default     = { min = 0, max = 1 }
  validation {
    condition     = var.finetune_pool_size.min >= 0 && var.finetune_pool_size.max >= max(1, var.finetune_pool_size.min)
    error_message = "finetune_pool_size needs 0 <= min <= max, and max of 1 or more."
  }
}

variable "api_machines" {
  description = "Machines of the HTTP API. 0: apps use Redis only, and no pool is scaled."
  type        = number
  default     = 1
  validation {
    condition     = var.api_machines >= 0 && floor(var.api_machines) == var.api_machines
    error_message = "api_machines must be a whole number from 0."
  }
}

variable "redis_machine_type" {
  description = "Redis may use 60 % of its memory for waiting jobs and results."
  type        = string
  default     = "e2-medium"
}

variable "subnet_range" {
  description = "Addresses of the machines."
  type        = string
  default     = "10.80.0.0/24"
  validation {
    condition     = can(cidrhost(var.subnet_range, 1)) && can(regex("^(10|172|192)\\.", var.subnet_range))
    error_message = "subnet_range must be a private range, such as 10.80.0.0/24."
  }
}

variable "cloud_build_user" {
  description = "Who may start builds, such as user:ada@example.org. Empty: only the project's owners and editors."
  type        = string
  default     = ""
  validation {
    condition     = can(regex("^$|^(user|group|serviceAccount):[^@ ]+@[^@ ]+$", var.cloud_build_user))
    error_message = "cloud_build_user must begin with user:, group: or serviceAccount:, such as user:ada@example.org."
  }
}
