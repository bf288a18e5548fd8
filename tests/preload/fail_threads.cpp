// A library for LD_PRELOAD: as under a process limit, pthread_create fails with EAGAIN after it has
// made $FAIL_THREADS threads; only in rank $FAIL_RANK, if that is set.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*body)(void*), void* argument) {
  using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static std::atomic<int> made{0};
  const char *most = std::getenv("FAIL_THREADS"), *where = std::getenv("FAIL_RANK");
  const char* const rank = std::getenv("RANK");
  const bool here = where == nullptr || (rank != nullptr && std::strcmp(rank, where) == 0);
  if (most != nullptr && here && made++ >= std::atoi(most)) return EAGAIN;
  auto* const real = reinterpret_cast<Create*>(dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, body, argument);
}
