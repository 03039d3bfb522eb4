variable "name" { type = string }
variable "instance_type" { type = string }
variable "size" { type = object({ min = number, max = number }) }
variable "use_spot" { type = bool }
variable "disk_gb" { type = number }
variable "machine_image" { type = string }
variable "subnet" { type = string }
variable "security_group" { type = string }
variable "instance_profile" { type = string }
variable "user_data" { type = string }
variable "namespace" { type = string }
variable "queue" { type = string }
variable "jobs_per_machine" { type = number }
variable "warm_up_s" { type = number }
