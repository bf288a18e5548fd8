# The toolchain of the preset aarch64: Debian's cross compiler, the arm64 libraries that scripts/aarch64.sh unpacks, and
# qemu-user, which runs the built programs.
set(folder ${CMAKE_CURRENT_LIST_DIR}/../third_party/aarch64)
cmake_path(ABSOLUTE_PATH folder NORMALIZE)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_SYSROOT ${folder}/sysroot)
set(CMAKE_FIND_ROOT_PATH ${folder}/prefix)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# qemu-user takes the loader and the libraries from the sysroot. Unpacking sets no Debian alternatives there, so RUNPATH
# names OpenBLAS's folder (cmake/third_party.cmake).
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L ${CMAKE_SYSROOT})
