// Global operator new and delete with a pool for small objects.
//
// Why: no thread that runs the schedule may call malloc from the second step on, and oneDNN builds
// an argument map of 5 to 15 nodes, at most 160 bytes each, at every run of a primitive (see [Note:
// oneDNN and malloc] in onednn.h). Sizes up to 512 bytes come from free lists of the calling
// thread, one per 16 bytes of size; an empty list takes 64 objects from malloc at once, so after
// the first step every request is served from a list. Larger sizes go to malloc.
//
// A freed object goes to the list of the thread that frees it; a list over 2 x 64 objects gives 64
// to a shared stack, where empty lists look first, so a thread that only frees feeds one that only
// makes. Delete finds the size class in the 16 bytes before the object (zero: from malloc). Lists
// have no destructors, so objects freed late in a thread's or the process's life are fine; a
// thread's lists are lost when it ends, and threads here live as long as the process. Aligned new
// stays the library's.
//
// Off under sanitizers, which bring their own operator new.
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

constexpr size_t kStep = 16;  // of size classes; also the header and the alignment of objects
constexpr size_t kLargest = 512;
constexpr size_t kClasses = kLargest / kStep;  // 1 .. kClasses
constexpr size_t kBatch = 64;                  // objects that move at once

struct Object {  // a header while in use, a list node while free
  size_t size_class;
  Object* next;
};
static_assert(sizeof(Object) == kStep);

// The first object of a batch on the shared stack keeps the next batch in its (unused) payload.
Object*& next_batch(Object* batch) { return *reinterpret_cast<Object**>(batch + 1); }

struct FreeList {
  Object* first;
  size_t count;
};
constinit thread_local FreeList free_lists[kClasses + 1] = {};
constinit Object* shared_stacks[kClasses + 1] = {};
constinit std::atomic_flag shared_lock;

class SharedGuard {
 public:
  SharedGuard() {
    while (shared_lock.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~SharedGuard() { shared_lock.clear(std::memory_order_release); }
};

bool take_shared(size_t size_class) {
  const SharedGuard guard;
  Object* batch = shared_stacks[size_class];
  if (batch == nullptr) return false;
  shared_stacks[size_class] = next_batch(batch);
  free_lists[size_class] = {batch, kBatch};
  return true;
}

void give_shared(size_t size_class) {
  FreeList& list = free_lists[size_class];
  Object* batch = list.first;
  Object* last = batch;
  for (size_t i = 1; i < kBatch; ++i) last = last->next;
  list = {last->next, list.count - kBatch};
  last->next = nullptr;
  const SharedGuard guard;
  next_batch(batch) = shared_stacks[size_class];
  shared_stacks[size_class] = batch;
}

bool refill(size_t size_class) {
  if (take_shared(size_class)) return true;
  const size_t bytes = kStep + size_class * kStep;
  auto* chunk = static_cast<char*>(std::malloc(bytes * kBatch));
  if (chunk == nullptr) return false;
  Object* first = nullptr;
  for (size_t i = 0; i < kBatch; ++i) {
    auto* object = reinterpret_cast<Object*>(chunk + i * bytes);
    *object = {size_class, first};
    first = object;
  }
  free_lists[size_class] = {first, kBatch};
  return true;
}

void* allocate(size_t bytes) noexcept {
  const size_t size_class = bytes == 0 ? 1 : (bytes + kStep - 1) / kStep;
  if (bytes > kLargest) {
    auto* object =
        bytes > ~size_t{0} - kStep ? nullptr : static_cast<Object*>(std::malloc(bytes + kStep));
    if (object == nullptr) return nullptr;
    object->size_class = 0;
    return object + 1;
  }
  FreeList& list = free_lists[size_class];
  if (list.first == nullptr && !refill(size_class)) return nullptr;
  Object* object = list.first;
  list = {object->next, list.count - 1};
  return object + 1;
}

void release(void* pointer) noexcept {
  if (pointer == nullptr) return;
  Object* object = static_cast<Object*>(pointer) - 1;
  if (object->size_class == 0) return std::free(object);
  FreeList& list = free_lists[object->size_class];
  object->next = list.first;
  list = {object, list.count + 1};
  if (list.count > 2 * kBatch) give_shared(object->size_class);
}

void* allocate_or_throw(size_t bytes) {
  while (true) {
    if (void* made = allocate(bytes)) return made;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

}  // namespace

void* operator new(size_t bytes) { return allocate_or_throw(bytes); }
void* operator new[](size_t bytes) { return allocate_or_throw(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* pointer) noexcept { release(pointer); }
void operator delete[](void* pointer) noexcept { release(pointer); }
void operator delete(void* pointer, size_t) noexcept { release(pointer); }
void operator delete[](void* pointer, size_t) noexcept { release(pointer); }
void operator delete(void* pointer, const std::nothrow_t&) noexcept { release(pointer); }
void operator delete[](void* pointer, const std::nothrow_t&) noexcept { release(pointer); }

#endif
