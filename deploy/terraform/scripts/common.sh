# Options and helpers of all scripts here; each sources this file after its own defaults and functions.
# shellcheck shell=bash
# shellcheck disable=SC2034  # the scripts read these variables
set -euo pipefail
readonly terraform_folder=${BASH_SOURCE[0]%/*}/..
readonly repository=$terraform_folder/../..
cloud=google
is_dry_run=false
is_confirmed=false

fail() {
    echo "$0: $*" >&2
    exit 2
}

# The comment at the head of the script is its help.
show_help() { sed -n '2,/^[^#]/{/^# shellcheck/d;s/^# \{0,1\}//p}' "$0"; }

# Options that all scripts have. Returns 1 for any other.
common_option() {
    case $1 in
        -h | --help)
            show_help
            exit 0
            ;;
        --dry-run) is_dry_run=true ;;
        --yes) is_confirmed=true ;;
        *) return 1 ;;
    esac
}

# run COMMAND: what changes something or costs, which a dry run only prints.
run() {
    if $is_dry_run; then
        printf 'would run:'
        printf ' %q' "$@"
        echo
    else
        "$@"
    fi
}

# confirm TEXT: what will happen, and what it costs.
confirm() {
    echo "$1"
    if $is_dry_run || $is_confirmed; then
        return
    fi
    [ -t 0 ] || fail "nobody can answer here: add --yes if you agree"
    read -r -p "Continue? [y/N] " answer
    [ "$answer" = y ] || fail "nothing was done"
}

# From the applied module; google alone has all of them.
project='' region='' zone='' name='' use_gpu='' finetune_min='' registry='' build_account='' build_bucket=''
read_deployment() {
    local settings
    settings=$(terraform -chdir="$terraform_folder/$cloud" output -raw script_settings) ||
        fail "deploy/terraform/$cloud has not been applied: run terraform init and apply there first"
    eval "$settings"
}

# on_api_machine COMMAND: over IAP, as no machine has a public address.
on_api_machine() {
    local machine
    machine=$(gcloud compute instance-groups managed list-instances "$name-api" --project "$project" --zone "$zone" \
        --filter status=RUNNING --limit 1 --format 'value(instance.basename())')
    [ -n "$machine" ] || fail "no machine of the API runs: apply the module with running = true"
    run gcloud compute ssh "$machine" --project "$project" --zone "$zone" --tunnel-through-iap --command "$1"
}

readonly in_api='sudo docker compose --project-directory /opt/kronos exec -T api python -P -m kronos_cli'
