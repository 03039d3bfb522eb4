# Starts this machine's part of a pool: one service of docker-compose.yml, or Redis. It runs at every boot, may run again,
# and needs Ubuntu 24.04. Its log: journalctl -u kronos-start. Terraform puts the settings (such as `service=worker-gpu`) and the functions of google.sh or
# aws.sh in front. ROOT is empty but in tests.
#
# On a new GPU machine the first run installs NVIDIA's driver and restarts the machine; the next boot continues.
# shellcheck shell=bash
# shellcheck disable=SC2154  # settings come from Terraform
set -euo pipefail
# Neither is set at boot: docker keeps its login in HOME, and AWS's command line is a snap.
export DEBIAN_FRONTEND=noninteractive HOME=/root PATH=$PATH:/snap/bin
readonly home=${ROOT:-}/opt/kronos secrets=${ROOT:-}/opt/kronos/secrets

log() { echo "kronos: $*" >&2; }

fail() {
    log "$*"
    exit 1
}

# Other programs of a first boot also use apt.
install_packages() {
    apt-get -q -o DPkg::Lock::Timeout=600 update
    apt-get -q -y -o DPkg::Lock::Timeout=600 install --no-install-recommends "$@"
}

# add_repository NAME KEY_URL LINE
add_repository() {
    local keyring=/usr/share/keyrings/$1.gpg
    install -d "${ROOT:-}/usr/share/keyrings" "${ROOT:-}/etc/apt/sources.list.d"
    curl -fsSL --retry 5 "$2" | gpg --dearmor --yes --output "${ROOT:-}$keyring"
    echo "deb [signed-by=$keyring] $3" >"${ROOT:-}/etc/apt/sources.list.d/$1.list"
}

driver_version() { nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1; }

# The kernel's own signed modules, so that nothing is compiled. They may need a newer kernel, and so a restart.
install_driver() {
    local version restarts=$home/driver-restarts kernel
    version=$(driver_version || true)
    if [ "${version%%.*}" -ge "$driver" ] 2>/dev/null; then
        return
    fi
    [ "$(cat "$restarts" 2>/dev/null || echo 0)" -lt 2 ] ||
        fail "NVIDIA driver $driver does not run after two restarts (nvidia-smi shows ${version:-none}): see dmesg"
    kernel=$(uname -r)
    log "installing NVIDIA driver $driver; the machine restarts afterwards"
    install_packages "linux-image-${kernel##*-}" "linux-modules-nvidia-$driver-server-${kernel##*-}" \
        "nvidia-headless-no-dkms-$driver-server" "nvidia-utils-$driver-server"
    echo $(($(cat "$restarts" 2>/dev/null || echo 0) + 1)) >"$restarts"
    reboot
    exit 0
}

install_docker() {
    local packages=(docker.io docker-compose-v2)
    if [ -n "$driver" ]; then
        add_repository nvidia-container-toolkit https://nvidia.github.io/libnvidia-container/gpgkey \
            "https://nvidia.github.io/libnvidia-container/stable/deb/\$(ARCH) /"
        packages+=(nvidia-container-toolkit)
    fi
    install_packages "${packages[@]}"
    if [ -n "$driver" ]; then
        nvidia-ctk runtime configure --runtime=docker
        systemctl restart docker
    fi
    touch "$home/docker-is-installed"
}

# write_unit NAME: a systemd unit from standard input.
write_unit() {
    install -d "${ROOT:-}/etc/systemd/system"
    cat >"${ROOT:-}/etc/systemd/system/$1"
    systemctl daemon-reload
}

# The files that docker-compose.yml reads. Its services run as another user, which must be able to read single secrets.
write_compose_folder() {
    local file
    install -d "$secrets/tls"
    chmod 700 "$secrets"
    base64 -d <<<"$compose_file" | gunzip >"$home/docker-compose.yml"
    base64 -d <<<"$override_file" | gunzip >"$home/docker-compose.override.yml"
    base64 -d <<<"$environment_file" | gunzip >"$home/.env"
    base64 -d <<<"$redis_certificate" | gunzip >"$secrets/tls/redis.pem"
    for file in $secret_files; do # FILE=SECRET
        fetch_secret "${file#*=}" >"$secrets/${file%%=*}"
        chmod 444 "$secrets/${file%%=*}"
    done
}

# On SIGTERM a worker ends or gives back its jobs within KRONOS_DRAIN_TIMEOUT_S, and training saves within
# KRONOS_FINETUNE_GRACE_S. A preempted machine has 30 s in all. systemd stops this unit before Docker and the network.
start_service() {
    write_unit kronos.service <<END
[Unit]
Description=Kronos $service
Requires=docker.service
After=docker.service network-online.target
Wants=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
WorkingDirectory=/opt/kronos
ExecStart=/usr/bin/docker compose up --detach --no-deps --pull never $service
ExecStop=/usr/bin/docker compose stop --timeout 25 $service
TimeoutStopSec=28
END
    systemctl restart kronos.service
}

# The API's machine also reports the figures that the pools are scaled by.
start_load_reports() {
    write_unit kronos-load.service <<'END'
[Unit]
Description=Report how many jobs each Kronos pool has
After=kronos.service
[Service]
ExecStart=/opt/kronos/start report-loads
Restart=always
RestartSec=15
END
    systemctl restart kronos-load.service
}

# Reads the API's /metrics; writes "queue jobs" for each queue. Training counts too, and while a queue's workers train,
# its pool must not shrink, as the cloud may end the machine that trains.
queue_loads() {
    awk '
        match($0, /queue="[^"]*"/) { queue = substr($0, RSTART + 7, RLENGTH - 8) }
        /^kronos_queue_jobs\{/ { load[queue] += $NF }
        /^kronos_jobs_training\{/ { training[queue] += $NF }
        /^kronos_workers\{/ { workers[queue] += $NF }
        END {
            for (queue in load) {
                jobs = load[queue] + training[queue]
                if (training[queue] > 0 && workers[queue] > jobs) jobs = workers[queue]
                print queue, jobs
            }
        }'
}

# Without figures nothing is scaled: an outage of the API or of Redis must not end machines.
report_loads() {
    local header=$secrets/metrics_header queue jobs
    (umask 077; printf 'Authorization: Bearer %s\n' "$(cat "$secrets/metrics_key")" >"$header")
    while true; do
        curl -fsS --max-time 10 -H "@$header" http://127.0.0.1:8000/metrics | queue_loads |
            while read -r queue jobs; do
                report_load "$queue" "$jobs" || log "the load of $queue was not reported"
            done || log "the API's metrics cannot be read"
        sleep 30
    done
}

# TLS alone, users with the rights that they need, and a disk of its own. noeviction: a full Redis refuses a job.
start_redis() {
    local folder=${ROOT:-}/var/lib/redis configuration=${ROOT:-}/etc/redis/kronos.conf memory_kb
    install -d "$folder" "${ROOT:-}/etc/redis"
    for _ in {1..150}; do # some clouds attach it after the machine has started
        [ ! -e "$redis_disk" ] || break
        sleep 2
    done
    blkid "$redis_disk" >/dev/null || mkfs.ext4 -q "$redis_disk"
    mountpoint -q "$folder" || mount "$redis_disk" "$folder"
    # The package starts a server with its own configuration: it must not be reachable, nor write to the disk.
    systemctl mask redis-server.service
    install_packages redis-server
    sysctl -q vm.overcommit_memory=1 # else saving fails when memory is short
    memory_kb=$(awk '/^MemTotal:/ { print $2 }' /proc/meminfo)
    base64 -d <<<"$redis_certificate" | gunzip >"${ROOT:-}/etc/redis/kronos.pem"
    (
        umask 077
        fetch_secret redis-tls-key >"${ROOT:-}/etc/redis/kronos.key"
        fetch_secret redis-users >"${ROOT:-}/etc/redis/users.acl"
        cat >"$configuration" <<END
protected-mode no
port 0
tls-port 6379
bind * -::*
tls-cert-file /etc/redis/kronos.pem
tls-key-file /etc/redis/kronos.key
tls-auth-clients no
aclfile /etc/redis/users.acl
dir /var/lib/redis
appendonly yes
appendfsync everysec
maxmemory $((memory_kb * 6 / 10))kb
maxmemory-policy noeviction
END
    )
    chown -R redis:redis "$folder" "${ROOT:-}/etc/redis"
    write_unit kronos-redis.service <<'END'
[Unit]
Description=Redis for Kronos
RequiresMountsFor=/var/lib/redis
[Service]
User=redis
ExecStart=/usr/bin/redis-server /etc/redis/kronos.conf --supervised systemd --daemonize no
Type=notify
LimitNOFILE=65536
Restart=always
TimeoutStopSec=25
END
    systemctl restart kronos-redis.service
}

start() {
    if [ "$service" = redis ]; then
        start_redis
        return
    fi
    [ -z "$driver" ] || install_driver
    [ -e "$home/docker-is-installed" ] || install_docker
    write_compose_folder
    mount_folders
    log_in_to_registry
    docker compose --project-directory "$home" pull --quiet "$service"
    start_service
    [ "$service" != api ] || start_load_reports
    log "$service runs"
}

# By a unit that tries again: a machine that failed to install itself once would cost and do nothing.
boot() {
    install -d "$home"
    install -m 700 "$0" "$home/start"
    write_unit kronos-start.service <<'END'
[Unit]
Description=Install what this Kronos machine needs, and start its service
After=network-online.target
Wants=network-online.target
[Service]
Type=oneshot
ExecStart=/opt/kronos/start start
Restart=on-failure
RestartSec=60
END
    systemctl restart --no-block kronos-start.service
}

case ${1:-boot} in
    boot) boot ;;
    start) start ;;
    report-loads) report_loads ;;
esac
