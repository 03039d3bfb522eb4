#!/usr/bin/env bash
# Builds and pushes images with docker. Called by build_images.sh, here or in Cloud Build.
#
#   docker_build.sh REGISTRY TAG "IMAGE ..." [TORCH_BUILD]
set -euo pipefail
cd "${BASH_SOURCE[0]%/*}/../../.."
registry=$1 tag=$2 images=$3 torch_build=${4:-}
declare -A dockerfile=([api]=Dockerfile.api [worker-cpu]=Dockerfile [worker-cuda]=Dockerfile.cuda)
for image in $images; do
    context=.
    if [ -n "$torch_build" ] && [ "$image" = worker-cuda ]; then
        # The requirements with another build of torch, in a copy of the sources.
        context=$(mktemp -d)
        tar --exclude=./.git --exclude=./.venv --exclude=./output -cf - . | tar -xf - -C "$context"
        sed -i "s|^torch===\(.*\)|--extra-index-url https://download.pytorch.org/whl/$torch_build\ntorch===\1+$torch_build|" \
            "$context/requirements-cuda.txt"
    fi
    docker build --file "$context/${dockerfile[$image]}" --tag "$registry/$image:$tag" "$context"
    docker push "$registry/$image:$tag"
done
