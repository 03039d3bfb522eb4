variable "name" { type = string }
variable "zone" { type = string }
variable "machine_type" { type = string }
variable "accelerator" {
  type    = string
  default = null
}
variable "size" { type = object({ min = number, max = number }) }
variable "use_spot" { type = bool }
variable "disk_gb" { type = number }
variable "machine_image" { type = string }
variable "subnetwork" { type = string }
variable "tags" { type = list(string) }
variable "service_account" { type = string }
variable "metadata" { type = map(string) }
variable "startup_script" { type = string }
variable "health_check" {
  type    = string
  default = null
}
variable "scaling" {
  description = "The metric of the queue's jobs, and for how many of them the pool gets a machine. null: fixed size."
  type        = object({ metric = string, queue = string, jobs_per_machine = number })
  default     = null
}
