#!/usr/bin/env bash
# Trains a model on the pool on Google Cloud: uploads candles, sends a finetuning job, follows it to its end.
#
#   deploy/terraform/scripts/run_training.sh --data FOLDER --config FILE --name NAME [--device auto|cpu|cuda]
#                                            [--dry-run] [--yes] [--help]
#
#   --data     CSV or Parquet files, for the bucket of candles
#   --config   as of `kronos finetune --config`; its data.path is replaced
#   --name     the model is registered as NAME
#   --device   cuda starts a GPU machine first, which takes 10 to 15 minutes; with auto and cpu the job waits in the
#              queue while its pool starts a machine. Default: cuda with use_gpu, else cpu
#
# The pool ends the machine 15 minutes after its last job. Ctrl-C stops following, not the job: its id is printed.
# shellcheck source-path=SCRIPTDIR source=common.sh
source "${BASH_SOURCE[0]%/*}/common.sh"
data='' config='' model='' device=''

while [ $# -gt 0 ]; do
    case $1 in
        --data) data=${2:?--data needs a folder} && shift ;;
        --config) config=${2:?--config needs a file} && shift ;;
        --name) model=${2:?--name needs a name} && shift ;;
        --device) device=${2:?--device needs auto, cpu or cuda} && shift ;;
        *) common_option "$1" || fail "no option $1: see --help" ;;
    esac
    shift
done
[ -d "$data" ] || fail "--data must be a folder with candles"
[ -f "$config" ] || fail "--config must be a file"
[[ $model =~ ^[a-z0-9][a-z0-9._-]*$ ]] || fail "--name must have lower-case letters, digits, dots, hyphens and underscores"
read_deployment
[ -n "$device" ] || { [ "$use_gpu" = true ] && device=cuda || device=cpu; }
[[ $device =~ ^(auto|cpu|cuda)$ ]] || fail "--device must be auto, cpu or cuda"

confirm "Uploads $data and trains $model on $device. If no machine trains, one starts and costs until it is idle again."
run gcloud storage rsync --recursive "$data" "gs://$project-$name-data/$model"

send() {
    on_api_machine "$in_api finetune --config /dev/stdin --data $model --device $device $* --enqueue $model" <"$config"
}

# The fewest machines of the pool that trains on GPUs. A job in its queue keeps one.
keep_gpu_machines() {
    run gcloud compute instance-groups managed update-autoscaling "$name-finetune-gpu" \
        --project "$project" --zone "$zone" --min-num-replicas "$1"
}

# Without a ready GPU worker a job would go to the CPU. Writes the job's id.
send_to_gpu() {
    local errors
    errors=$(mktemp)
    for _ in {1..60}; do
        if send --no-fallback 2>"$errors"; then
            return
        fi
        grep -q NO_GPU_WORKER "$errors" || break
        echo "waiting for a GPU machine" >&2
        sleep 30
    done
    cat "$errors" >&2
    return 1
}

if [ "$device" = cuda ]; then
    trap 'keep_gpu_machines "$finetune_min" >&2' EXIT
    keep_gpu_machines 1
    job=$(send_to_gpu)
else
    job=$(send)
fi
echo "$job"
if $is_dry_run; then job=ID; fi
on_api_machine "$in_api finetune --watch $job"
