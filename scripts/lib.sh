# Sourced by the scripts here: one step after the other, each with its time.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

now_ms() {
	local t=$EPOCHREALTIME
	echo $((${t/[.,]/} / 1000))
}

# step WHAT CMD…: runs CMD, its output kept; prints WHAT with the seconds it took, or the end of
# the output when it failed.
step() {
	local what=$1 log start ms rc=0
	shift
	log=$(mktemp)
	start=$(now_ms)
	[ -t 2 ] && printf '  … %s' "$what" >&2
	"$@" >"$log" 2>&1 || rc=$?
	ms=$(($(now_ms) - start))
	[ -t 2 ] && printf '\r\033[K' >&2
	if [ $rc = 0 ]; then
		printf ' ok  %-52s %4d.%d s\n' "$what" $((ms / 1000)) $((ms % 1000 / 100)) >&2
	else
		tail -n 60 "$log" >&2
		printf 'FAIL %-52s %4d.%d s (status %d, output above)\n' "$what" $((ms / 1000)) \
			$((ms % 1000 / 100)) $rc >&2
	fi
	rm -f "$log"
	return $rc
}

# configure DIR MESON-OPTIONS…: sets a build folder up, or keeps the one there is.
configure() {
	local dir=$1
	shift
	[ -e "$dir/build.ninja" ] || CC=${CC:-gcc} meson setup "$dir" "$@"
}
