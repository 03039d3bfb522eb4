# The same file in each cloud's folder; a test compares them.
variable "name" {
  description = "Start of all names, so that a project can have several pools."
  type        = string
  default     = "kronos"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", var.name))
    error_message = "name must have 2 to 20 lower-case letters, digits and hyphens, and start with a letter."
  }
}

variable "running" {
  description = "false removes all machines and keeps registry, buckets, secrets and Redis's disk."
  type        = bool
  default     = true
  validation {
    condition     = !var.running || var.images != null
    error_message = "running needs images: apply with -var running=false, then run scripts/build_images.sh."
  }
}

variable "images" {
  description = "The images by digest, as scripts/build_images.sh writes them. cuda is for GPUs only."
  type        = object({ api = string, cpu = string, cuda = optional(string) })
  default     = null
  validation {
    condition = var.images == null ? true : alltrue([
      for image in values(var.images) : image == null || can(regex("^[^@ ]+@sha256:[0-9a-f]{64}$", image))
    ])
    error_message = "images must name each image by digest: REGISTRY/NAME@sha256:… . A tag may change under a machine."
  }
  validation {
    condition     = !var.use_gpu || try(var.images.cuda, "") != null
    error_message = "images needs cuda while use_gpu is true: run scripts/build_images.sh without --cpu-only."
  }
}

variable "use_gpu" {
  description = "false makes no machine with a GPU, in any pool."
  type        = bool
  default     = true
}

variable "nvidia_driver" {
  description = "Branch of NVIDIA's driver. The image of Dockerfile.cuda needs 580 or newer."
  type        = number
  default     = 580
  validation {
    condition     = var.nvidia_driver >= 580
    error_message = "nvidia_driver must be 580 or newer: an older one cannot run CUDA 13, and the worker would use the CPU."
  }
}

variable "cpu_pool_size" {
  description = "Fewest and most CPU workers."
  type        = object({ min = number, max = number })
  default     = { min = 1, max = 4 }
  validation {
    condition     = var.cpu_pool_size.min >= 0 && var.cpu_pool_size.max >= max(1, var.cpu_pool_size.min)
    error_message = "cpu_pool_size needs 0 <= min <= max, and max of 1 or more."
  }
}

variable "gpu_pool_size" {
  description = "Fewest and most GPU workers. With min 0 all jobs go to the CPU: senders choose a GPU only if a worker is ready."
  type        = object({ min = number, max = number })
  default     = { min = 1, max = 2 }
  validation {
    condition     = var.gpu_pool_size.min >= 0 && var.gpu_pool_size.max >= max(1, var.gpu_pool_size.min)
    error_message = "gpu_pool_size needs 0 <= min <= max, and max of 1 or more."
  }
}

variable "jobs_per_machine" {
  description = "Waiting forecasts for which a pool gets a machine: those that one computes within the acceptable wait."
  type        = object({ cpu = number, gpu = number })
  default     = { cpu = 30, gpu = 300 }
  validation {
    condition     = var.jobs_per_machine.cpu > 0 && var.jobs_per_machine.gpu > 0
    error_message = "jobs_per_machine must be above 0."
  }
}

variable "use_spot" {
  description = "Spot machines for workers: much cheaper, and ended at short notice. No job is lost."
  type        = bool
  default     = true
}

variable "disk_gb" {
  description = "Disk of each machine, for its image, driver and downloaded models."
  type        = number
  default     = 50
  validation {
    condition     = var.disk_gb >= 30
    error_message = "disk_gb must be 30 or more."
  }
}

variable "redis_disk_gb" {
  description = "Disk of Redis's append-only file. Its data needs twice its memory for a moment."
  type        = number
  default     = 20
  validation {
    condition     = var.redis_disk_gb >= 10
    error_message = "redis_disk_gb must be 10 or more."
  }
}

variable "allowed_networks" {
  description = "Private networks of your apps, peered or joined by VPN, that may reach the API and Redis."
  type        = list(string)
  default     = []
  validation {
    condition = alltrue([
      for range in var.allowed_networks : can(cidrhost(range, 0)) && can(regex(
        "^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|100\\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\\.)", range
      ))
    ])
    error_message = "allowed_networks must be private ranges, such as 10.0.0.0/16: nothing here may face the internet."
  }
}

variable "settings" {
  description = "Settings of all containers (docs/reference/settings.md), such as KRONOS_MODEL."
  type        = map(string)
  default     = {}
  validation {
    condition     = alltrue([for key in keys(var.settings) : can(regex("^KRONOS_[A-Z0-9_]+$", key))])
    error_message = "settings must be names that begin with KRONOS_."
  }
  validation {
    condition = length(setintersection(keys(var.settings), [
      "KRONOS_API_KEYS", "KRONOS_REDIS_URL", "KRONOS_QUEUE_PREFIX", "KRONOS_WEBHOOK_SECRET",
    ])) == 0
    error_message = "settings must hold no key or password (metadata shows them), and no KRONOS_REDIS_URL or KRONOS_QUEUE_PREFIX: this Redis is the pool's own."
  }
}
