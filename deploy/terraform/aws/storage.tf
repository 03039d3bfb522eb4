resource "aws_ecr_repository" "images" {
  for_each             = toset(["api", "worker-cpu", "worker-cuda"])
  name                 = "${var.name}/${each.key}"
  image_tag_mutability = "IMMUTABLE"
}

# Models and candles. A file system, not a bucket: folders of models must be renamed in one step.
resource "aws_efs_file_system" "pool" {
  creation_token = var.name
  encrypted      = true
}

resource "aws_efs_mount_target" "pool" {
  file_system_id  = aws_efs_file_system.pool.id
  subnet_id       = aws_subnet.machines.id
  security_groups = [aws_security_group.machines.id]
}

resource "aws_ssm_parameter" "secret" {
  for_each = module.machine.secret_readers
  name     = "/${var.name}/${each.key}"
  type     = "SecureString"
  value    = module.machine.secrets[each.key]
}

resource "aws_iam_role" "machine" {
  for_each = toset(["api", "worker", "finetune", "redis"])
  name     = "${var.name}-${each.key}"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "ec2.amazonaws.com" } }]
  })
}

resource "aws_iam_instance_profile" "machine" {
  for_each = aws_iam_role.machine
  name     = each.value.name
  role     = each.value.name
}

# Session Manager, in place of ssh.
resource "aws_iam_role_policy_attachment" "session_manager" {
  for_each   = aws_iam_role.machine
  role       = each.value.name
  policy_arn = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_role_policy" "machine" {
  for_each = aws_iam_role.machine
  role     = each.value.name
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [{
        Effect   = "Allow"
        Action   = ["ssm:GetParameter"]
        Resource = [for key, roles in module.machine.secret_readers : aws_ssm_parameter.secret[key].arn if contains(roles, each.key)]
      }],
      each.key == "redis" ? [] : [
        { Effect = "Allow", Action = ["ecr:GetAuthorizationToken"], Resource = ["*"] },
        {
          Effect   = "Allow"
          Action   = ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
          Resource = [for repository in aws_ecr_repository.images : repository.arn]
        },
      ],
      each.key != "api" ? [] : [{
        Effect    = "Allow"
        Action    = ["cloudwatch:PutMetricData"]
        Resource  = ["*"]
        Condition = { StringEquals = { "cloudwatch:namespace" = var.name } }
      }],
    )
  })
}
