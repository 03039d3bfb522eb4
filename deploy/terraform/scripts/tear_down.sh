#!/usr/bin/env bash
# Ends what costs. Without --all: all machines, and keeps images, models, candles, secrets and Redis's disk with its jobs.
#
#   deploy/terraform/scripts/tear_down.sh [--cloud google|aws] [--all] [--dry-run] [--yes] [--help]
#
#   --all   everything that the module made, with all models, candles, waiting jobs and results. The state's bucket stays.
#
# What stays without --all still costs: Redis's disk, stored files, images, and the NAT gateway, which AWS bills by the hour.
# `terraform apply` in deploy/terraform/google or aws starts the machines again.
# shellcheck source-path=SCRIPTDIR source=common.sh
source "${BASH_SOURCE[0]%/*}/common.sh"
is_all=false

while [ $# -gt 0 ]; do
    case $1 in
        --cloud) cloud=${2:?--cloud needs google or aws} && shift ;;
        --all) is_all=true ;;
        *) common_option "$1" || fail "no option $1: see --help" ;;
    esac
    shift
done
[ "$cloud" = google ] || [ "$cloud" = aws ] || fail "--cloud must be google or aws"
read_deployment
terraform=(terraform -chdir="$terraform_folder/$cloud")

# Running jobs go back to the queue, and training saves its state.
if ! $is_all; then
    confirm "Ends all machines of $name. Waiting jobs stay on Redis's disk."
    run "${terraform[@]}" apply -var running=false -auto-approve
    exit
fi
confirm "DELETES $name: all models, candles, waiting jobs, results, images and secrets. They cannot be recovered."
if [ "$cloud" = google ]; then
    for folder in models data; do # with the bucket, else its folders would remain
        run gcloud storage rm --recursive --quiet "gs://$project-$name-$folder" ||
            echo "gs://$project-$name-$folder: nothing to delete" >&2
    done
else
    for image in api worker-cpu worker-cuda; do
        run aws ecr delete-repository --region "$region" --repository-name "$name/$image" --force \
            --query repository.repositoryUri --output text ||
            echo "$name/$image: nothing to delete" >&2
    done
fi
run "${terraform[@]}" destroy -auto-approve
