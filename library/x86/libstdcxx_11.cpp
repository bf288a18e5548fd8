// Calls of std::condition_variable::wait, to which library/CMakeLists.txt leads all of the library's: they reach the
// version that every libstdc++ since GCC 4.8 has. The linker would choose the newest, which that of GCC 11 lacks
// (RHEL 9); the two differ in `noexcept` alone.
extern "C" {

__asm__(
    ".symver ofsdp_condition_variable_wait, "
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
void ofsdp_condition_variable_wait(void* self, void* lock);

void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(void* self, void* lock) {
  ofsdp_condition_variable_wait(self, lock);
}

}  // extern "C"
