// [Note: OFSDP_MAX_CPU_ISA] OFSDP_MAX_CPU_ISA=AVX2 in the environment makes a processor with
// AVX-512 behave like one without, for everything that OFSDP_MULTIARCH or __builtin_cpu_supports
// chooses, as ONEDNN_MAX_CPU_ISA=AVX2 does for oneDNN. Tests run kernels a second time that way.
//
// The compiler makes a resolver for every cloned function. The loader calls it while it relocates
// the program; the resolver calls libgcc's __cpu_indicator_init and reads the bits it left. The
// linker option --wrap (kernels/CMakeLists.txt) sends these calls here. So early, libc may not be
// called and has no environment yet, so this file reads /proc/self/environ by system calls. If that
// fails, nothing is limited.
#include <fcntl.h>
#include <sys/syscall.h>

// libgcc's own, a copy for each program and shared library.
struct OfsdpCpuModel {
  unsigned vendor, type, subtype, features[1];
};
extern "C" {
extern OfsdpCpuModel __cpu_model __attribute__((visibility("hidden")));
extern unsigned __cpu_features2[] __attribute__((visibility("hidden")));
int __real___cpu_indicator_init();
int __wrap___cpu_indicator_init();
}

namespace {

long system_call(long number, long a, long b, long c) {
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c)
               : "rcx", "r11", "memory");
  return result;
}

// Returns whether the environment, "NAME=value" between zero bytes, holds the variable.
bool limited_to_avx2() {
  constexpr char kWanted[] = "OFSDP_MAX_CPU_ISA=AVX2";
  const long fd =
      system_call(SYS_open, reinterpret_cast<long>("/proc/self/environ"), O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return false;
  char block[1024];
  long matched = 0;  // characters in this variable that agree; -1: one does not
  bool found = false;
  for (long n = 1; n > 0 && !found;) {
    n = system_call(SYS_read, fd, reinterpret_cast<long>(block), sizeof block);
    for (long i = 0; i < n && !found; ++i) {
      const bool same = matched >= 0 && block[i] == kWanted[matched];
      found = same && block[i] == 0;
      matched = block[i] == 0 ? 0 : same ? matched + 1 : -1;
    }
  }
  system_call(SYS_close, fd, 0, 0);
  return found;
}

// Returns how many features that our code asks for are there.
int features_left() {
  asm volatile("" ::: "memory");  // the bits may have just changed
  return !!__builtin_cpu_supports("avx512f") + !!__builtin_cpu_supports("avx512dq") +
         !!__builtin_cpu_supports("avx512bf16") + !!__builtin_cpu_supports("x86-64-v4");
}

// Clears each bit that one of them needs: compilers number them differently.
void clear_avx512(unsigned& word) {
  for (unsigned bit = 1; bit != 0; bit <<= 1) {
    const int before = features_left();
    const unsigned kept = word;
    word = kept & ~bit;
    if (features_left() == before) word = kept;
  }
}

}  // namespace

int __wrap___cpu_indicator_init() {
  static bool called = false;
  const int status = __real___cpu_indicator_init();
  if (called) return status;
  called = true;
  if (limited_to_avx2()) {
    clear_avx512(__cpu_model.features[0]);
    for (int i = 0; features_left() > 0; ++i) clear_avx512(__cpu_features2[i]);
  }
  return status;
}
