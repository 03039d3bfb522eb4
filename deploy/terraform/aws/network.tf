# No machine has a public address. They reach out by NAT; people come in by Session Manager, apps from allowed_networks.
resource "aws_vpc" "pool" {
  cidr_block           = var.network_range
  enable_dns_hostnames = true
}

resource "aws_subnet" "nat" {
  vpc_id     = aws_vpc.pool.id
  cidr_block = cidrsubnet(var.network_range, 1, 0)
}

resource "aws_subnet" "machines" {
  vpc_id            = aws_vpc.pool.id
  cidr_block        = cidrsubnet(var.network_range, 1, 1)
  availability_zone = aws_subnet.nat.availability_zone
}

resource "aws_internet_gateway" "pool" {
  vpc_id = aws_vpc.pool.id
}

resource "aws_eip" "nat" {
  domain = "vpc"
}

resource "aws_nat_gateway" "pool" {
  subnet_id     = aws_subnet.nat.id
  allocation_id = aws_eip.nat.id
  depends_on    = [aws_internet_gateway.pool]
}

resource "aws_route_table" "pool" {
  for_each = { nat = aws_internet_gateway.pool.id, machines = aws_nat_gateway.pool.id }
  vpc_id   = aws_vpc.pool.id
  route {
    cidr_block     = "0.0.0.0/0"
    gateway_id     = each.key == "nat" ? each.value : null
    nat_gateway_id = each.key == "machines" ? each.value : null
  }
}

resource "aws_route_table_association" "pool" {
  for_each       = { nat = aws_subnet.nat.id, machines = aws_subnet.machines.id }
  subnet_id      = each.value
  route_table_id = aws_route_table.pool[each.key].id
}

resource "aws_security_group" "machines" {
  name        = "${var.name}-machines"
  description = "Kronos"
  vpc_id      = aws_vpc.pool.id
}

locals {
  # Redis and the API, from the machines themselves and from apps; files, from the machines.
  ingress = merge(
    { for port in [2049, 6379, 8000] : "${port} machines" => { port = port, range = null } },
    {
      for pair in setproduct([6379, 8000], var.allowed_networks) :
      "${pair[0]} ${pair[1]}" => { port = pair[0], range = pair[1] }
    },
  )
}

resource "aws_vpc_security_group_ingress_rule" "machines" {
  for_each                     = local.ingress
  security_group_id            = aws_security_group.machines.id
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
  cidr_ipv4                    = each.value.range
  referenced_security_group_id = each.value.range == null ? aws_security_group.machines.id : null
}

resource "aws_vpc_security_group_egress_rule" "machines" {
  security_group_id = aws_security_group.machines.id
  ip_protocol       = "-1"
  cidr_ipv4         = "0.0.0.0/0"
}
