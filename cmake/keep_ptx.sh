#!/usr/bin/env bash
# Runs a compilation by nvcc and keeps files for tests/ptx.py next to the object FILE.o. FILE.o.usage has ptxas's report
# on registers, shared memory and spills. FILE.o.ptx/ has the PTX for each architecture. Nothing is compiled twice.
#
#   keep_ptx.sh NVCC ARGUMENT... -o FILE.o
set -euo pipefail
object=
for ((i = 1; i < $#; ++i)); do
  if [ "${!i}" = -o ]; then
    next=$((i + 1))
    object=${!next}
  fi
done
if [[ $object != *.o ]]; then
  exec "$@"
fi

work=$object.keep
rm -rf "$work" "$object.usage" "$object.ptx"
mkdir -p "$work" "$object.ptx"
trap 'rm -rf "$work"' EXIT
status=0
"$@" --keep --keep-dir "$work" --resource-usage 2>"$object.usage" || status=$?
mv "$work"/*.ptx "$object.ptx/" 2>/dev/null || true
# Warnings and errors are shown, usage is not.
grep -vE '^(ptxas info|    [0-9]+ bytes stack frame)' "$object.usage" >&2 || true
exit $status
