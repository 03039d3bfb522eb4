#!/usr/bin/env bash
# Builds the images of a pool, pushes them, and writes their digests to images.auto.tfvars, which terraform apply reads.
#
#   deploy/terraform/scripts/build_images.sh [--cloud google|aws] [--tag TAG] [--cpu-only] [--for-v100]
#                                            [--dry-run] [--yes] [--help]
#
#   --cloud      google: Cloud Build builds, and nothing but gcloud is needed here. aws: docker builds here.
#   --tag        default: the commit
#   --cpu-only   no image for GPUs, for use_gpu = false
#   --for-v100   torch for CUDA 12.6: that for CUDA 13 has no code for a V100
#
# It costs the minutes of the build, and the room in the registry: the image for GPUs holds CUDA.
# shellcheck source-path=SCRIPTDIR source=common.sh
source "${BASH_SOURCE[0]%/*}/common.sh"
tag=''
has_cuda=true
torch_build=''

while [ $# -gt 0 ]; do
    case $1 in
        --cloud) cloud=${2:?--cloud needs google or aws} && shift ;;
        --tag) tag=${2:?--tag needs a value} && shift ;;
        --cpu-only) has_cuda=false ;;
        --for-v100) torch_build=cu126 ;;
        *) common_option "$1" || fail "no option $1: see --help" ;;
    esac
    shift
done
[ "$cloud" = google ] || [ "$cloud" = aws ] || fail "--cloud must be google or aws"
tag=${tag:-$(git -C "$repository" describe --always --dirty)}
[[ $tag =~ ^[A-Za-z0-9_.-]{1,128}$ ]] || fail "--tag must have letters, digits, dots, hyphens and underscores only"
read_deployment
images=(api worker-cpu)
! $has_cuda || images+=(worker-cuda)

build_on_google() {
    run gcloud builds submit "$repository" --project "$project" --region "$region" \
        --config "$terraform_folder/scripts/cloudbuild.yaml" --service-account "$build_account" \
        --gcs-source-staging-dir "gs://$build_bucket/source" \
        --substitutions "_REGISTRY=$registry,_TAG=$tag,_IMAGES=${images[*]},_TORCH_BUILD=$torch_build"
}

build_here() {
    run bash -c 'aws ecr get-login-password --region "$0" | docker login --username AWS --password-stdin "$1"' \
        "$region" "${registry%%/*}"
    run "$terraform_folder/scripts/docker_build.sh" "$registry" "$tag" "${images[*]}" "$torch_build"
}

digest_of() {
    if [ "$cloud" = google ]; then
        gcloud artifacts docker images describe "$registry/$1:$tag" --format 'value(image_summary.digest)'
    else
        aws ecr describe-images --region "$region" --repository-name "$name/$1" --image-ids "imageTag=$tag" \
            --query 'imageDetails[0].imageDigest' --output text
    fi
}

confirm "Builds ${images[*]} as $tag and pushes them to $registry."
if [ "$cloud" = google ]; then build_on_google; else build_here; fi
variables=$terraform_folder/$cloud/images.auto.tfvars
if $is_dry_run; then
    echo "would write: $variables"
    exit
fi
{
    echo "# Written by build_images.sh from $tag."
    echo "images = {"
    for image in "${images[@]}"; do
        digest=$(digest_of "$image")
        echo "  ${image#worker-} = \"$registry/$image@$digest\""
    done
    echo "}"
} >"$variables.new"
mv "$variables.new" "$variables"
cat "$variables"
