#!/usr/bin/env bash
# A SLURM of one node on this machine, for testing `treespec sweep --executor slurm`. Debian or Ubuntu, as root.
#
#   tests/slurm_single_node.sh start    installs slurm-wlm and munge, starts the daemons, waits for the node
#   tests/slurm_single_node.sh stop     ends the daemons that `start` started
#
# No accounting, no cgroups, no confinement: it works in a container, and is no example of a cluster. It replaces
# /etc/slurm/slurm.conf (a former one is kept as slurm.conf.before-treespec).
set -euo pipefail

state=/var/lib/treespec-slurm
conf=/etc/slurm/slurm.conf
wait_s=60

install_packages() {
  if ! command -v slurmctld >/dev/null || ! command -v munged >/dev/null; then
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -qy slurm-wlm munge
  fi
}

write_conf() {
  mkdir -p /etc/slurm "$state/ctld" "$state/d"
  if [ -e "$conf" ] && ! grep -q treespec "$conf"; then mv "$conf" "$conf.before-treespec"; fi
  local memory
  memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
  cat > "$conf" <<EOF
# Written by treespec's slurm_single_node.sh, for tests.
ClusterName=treespec
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.pid
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/d
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=2
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$(hostname -s) Default=YES MaxTime=INFINITE State=UP
EOF
  # From 23.11 on slurmd looks for cgroups at its start, whatever the plugins above say, unless told not to.
  if printf '23.11\n%s\n' "$(slurmd -V | awk '{print $2}')" | sort -C -V; then
    echo "CgroupPlugin=disabled" > /etc/slurm/cgroup.conf
  fi
}

runs() {
  [ -e "$state/$1.pid" ] && kill -0 "$(cat "$state/$1.pid")" 2>/dev/null
}

start() {
  install_packages
  write_conf
  mkdir -p /run/munge /var/log/munge /var/lib/munge
  chown munge: /run/munge /var/log/munge /var/lib/munge
  if [ ! -e /etc/munge/munge.key ]; then
    dd if=/dev/urandom of=/etc/munge/munge.key bs=1 count=1024 status=none
    chown munge: /etc/munge/munge.key
    chmod 400 /etc/munge/munge.key
  fi
  munge -n >/dev/null 2>&1 || runuser -u munge -- /usr/sbin/munged
  runs slurmctld || slurmctld
  runs slurmd || slurmd
  for _ in $(seq "$wait_s"); do
    if sinfo -h -o %T 2>/dev/null | grep -qE '^(idle|mixed|allocated)'; then
      sinfo
      return
    fi
    sleep 1
  done
  echo "the node did not come up within $wait_s s; see $state/slurmctld.log and $state/slurmd.log" >&2
  exit 1
}

stop() {
  for daemon in slurmd slurmctld; do
    if runs "$daemon"; then kill "$(cat "$state/$daemon.pid")"; fi
  done
}

case "${1:-}" in
  start) start ;;
  stop) stop ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
