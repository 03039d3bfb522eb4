# 1.10 or newer: the state is locked by a file in its bucket.
terraform {
  required_version = ">= 1.10"

  required_providers {
    aws    = { source = "hashicorp/aws", version = "~> 6.25" }
    random = { source = "hashicorp/random", version = "~> 3.7" }
    tls    = { source = "hashicorp/tls", version = "~> 4.1" }
  }

  # terraform init -backend-config=backend.tfvars
  backend "s3" {}
}

provider "aws" {
  region = var.region
  default_tags {
    tags = { app = var.name }
  }
}
