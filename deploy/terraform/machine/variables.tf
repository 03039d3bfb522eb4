variable "cloud" { type = string }
variable "name" { type = string }
variable "running" { type = bool }
variable "use_gpu" { type = bool }
variable "images" { type = object({ api = string, cpu = string, cuda = optional(string) }) }
variable "nvidia_driver" { type = number }
variable "settings" { type = map(string) }
variable "redis_host" {
  description = "Redis's name or address, which its certificate also has."
  type        = string
}
variable "redis_disk" {
  description = "Redis's disk, as its machine sees it."
  type        = string
}
variable "constants" {
  description = "Further variables of the script, for the functions of CLOUD.sh."
  type        = map(string)
}
