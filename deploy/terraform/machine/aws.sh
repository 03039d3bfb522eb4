# What start.sh needs of AWS.
# shellcheck shell=bash
# shellcheck disable=SC2154  # settings come from Terraform
export AWS_DEFAULT_REGION=$region

fetch_secret() {
    command -v aws >/dev/null || { snap wait system seed.loaded && snap install aws-cli --classic >&2; }
    aws ssm get-parameter --with-decryption --name "/$name_prefix/$1" --query Parameter.Value --output text
}

log_in_to_registry() {
    aws ecr get-login-password | docker login --username AWS --password-stdin "${registry%%/*}"
}

# One file system for all machines, with a folder each for models and candles.
mount_folders() {
    local root=${ROOT:-}/mnt/kronos
    install_packages nfs-common
    install -d "$root"
    mountpoint -q "$root" ||
        mount -t nfs4 -o nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,noresvport "$file_system:/" "$root"
    install -d "$root/models" "$root/data"
    chown 10001:10001 "$root/models" "$root/data" # the containers' user
}

# report_load QUEUE JOBS: one point of the metric that the pools are scaled by.
report_load() {
    aws cloudwatch put-metric-data --namespace "$name_prefix" --metric-name queue_jobs --dimensions "queue=$1" --value "$2"
}
