# For run.sh and bench/gpu_vs_pytorch.sh on a host with a GPU; to be sourced in the root of the tree, with the targets
# to build if there is no build. Unpacks build/gpu/bundle.tar.xz (pack.sh), or builds, and tells the loader where the
# libraries are.
#
# OFSDP_BUILD              the build, build/cuda; exported
# OFSDP_CUDA_LIBRARY       the device library, by default the build's; exported if there is one
# OFSDP_HOST_LIBRARY_PATH  the old LD_LIBRARY_PATH, for programs that are not ours; exported
export OFSDP_BUILD=${OFSDP_BUILD:-build/cuda} OFSDP_RUN_DIR=none
bundle=build/gpu/bundle.tar.xz

if [ ! -x "$OFSDP_BUILD/fsdp-run" ] && [ -f "$bundle" ]; then
  tar -xJf "$bundle" || python3 -c "import tarfile; tarfile.open('$bundle').extractall('.')"
  [ ! -d build/peer_models ] || python3 bench/weightless.py fill build/peer_models
fi
if [ ! -x "$OFSDP_BUILD/fsdp-run" ]; then
  cmake --preset cuda -DOFSDP_CUDA_ARCHITECTURES="${OFSDP_CUDA_ARCHITECTURES:-90-real}"
  cmake --build --preset cuda -j "$(nproc)" --target "$@"
fi

# The tests were built in another folder.
if [ -f build/gpu/root ]; then
  root=$(<build/gpu/root)
  if [ ! -e "$root" ]; then
    mkdir -p "$(dirname "$root")"
    ln -s "$PWD" "$root"
  fi
fi

# Our packed libraries first, then NVIDIA's where the loader does not look: in the toolkit and in Python's wheels. Only
# once: a script that sources this may start another one.
if [ -z "${OFSDP_HOST_LIBRARY_PATH+set}" ]; then
  export OFSDP_HOST_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
  paths=$PWD/build/gpu/lib
  [ ! -d /usr/local/cuda/lib64 ] || paths+=:/usr/local/cuda/lib64
  wheels=$(python3 -c 'import glob, site, sysconfig
roots = {sysconfig.get_path("purelib"), *site.getsitepackages()}
print(":".join(p for r in sorted(roots) for p in sorted(glob.glob(r + "/nvidia/*/lib"))))' 2>/dev/null || true)
  export LD_LIBRARY_PATH=$paths${wheels:+:$wheels}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export PATH=$PATH:/usr/local/cuda/bin
fi
# Tests do not lie in the library's folder.
[ ! -f "$OFSDP_BUILD/libofsdp_cuda.so" ] || export OFSDP_CUDA_LIBRARY=${OFSDP_CUDA_LIBRARY:-$PWD/$OFSDP_BUILD/libofsdp_cuda.so}
