#include "shared_memory.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace emulator {

uint64_t running_block = 0;

struct SharedGroup {
  std::vector<SharedPart> parts;
  uint64_t block = 0;
  std::source_location place;
};

namespace {

constexpr unsigned char kBrick = 0xb7;
constexpr std::string_view kOwner = "emulator_owner_", kWallName = "emulator_wall_";

// The program or library with this function.
struct Module {
  uintptr_t base = 0;
  std::string path;

  Module() {
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* self) {
          const auto here = reinterpret_cast<uintptr_t>(&running_block);
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const ElfW(Phdr)& p = info->dlpi_phdr[i];
            const uintptr_t begin = info->dlpi_addr + p.p_vaddr;
            if (p.p_type != PT_LOAD || here < begin || here >= begin + p.p_memsz) continue;
            auto* const m = static_cast<Module*>(self);
            m->base = info->dlpi_addr;
            m->path = *info->dlpi_name == '\0' ? "/proc/self/exe" : info->dlpi_name;
            return 1;
          }
          return 0;
        },
        this);
  }
};

// The module's file, mapped.
class ElfFile {
 public:
  explicit ElfFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (file >= 0 && fstat(file, &status) == 0) {
      bytes_ = static_cast<size_t>(status.st_size);
      void* const at = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
      if (at != MAP_FAILED) data_ = static_cast<const char*>(at);
    }
    if (file >= 0) close(file);
  }
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;
  ~ElfFile() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), bytes_);
  }

  // f(name, symbol) for each variable; returns whether there is a symbol table.
  template <typename F>
  bool variables(const F& f) const {
    if (data_ == nullptr) return false;
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(data_);
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(data_ + header->e_shoff);
    const auto* table = std::find_if(sections, sections + header->e_shnum,
                                     [](const auto& s) { return s.sh_type == SHT_SYMTAB; });
    if (table == sections + header->e_shnum) return false;
    const char* names = data_ + sections[table->sh_link].sh_offset;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(data_ + table->sh_offset);
    for (size_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); ++i) {
      if (ELF64_ST_TYPE(symbols[i].st_info) == STT_OBJECT)
        f(names + symbols[i].st_name, symbols[i]);
    }
    return true;
  }

 private:
  const char* data_ = nullptr;
  size_t bytes_ = 0;
};

// "_ZZ, the function's name, E, digits": the variable's own name follows.
std::string_view function_of(std::string_view name, size_t own) {
  while (own > 0 && name[own - 1] >= '0' && name[own - 1] <= '9') --own;
  return name.substr(0, own);
}

// Every function's shared variables.
class SharedMemory {
 public:
  static SharedMemory& get() {
    static SharedMemory memory;
    return memory;
  }
  SharedGroup* group_of(const void* owner) {
    const auto found = owners_.find(reinterpret_cast<uintptr_t>(owner));
    return found == owners_.end() ? nullptr : &groups_.find(found->second)->second;
  }
  void begin_block(unsigned char garbage) {
    ++running_block;
    garbage_ = garbage;
    filled_.clear();
  }
  void fill(SharedGroup& group, const std::source_location& place) {
    group.block = running_block;
    group.place = place;
    for (const SharedPart& part : group.parts) {
      std::memset(part.begin, part.wall ? kBrick : garbage_, part.bytes);
    }
    filled_.push_back(&group);
  }
  const std::source_location* broken() const {
    const std::source_location* at = nullptr;
    for (const SharedGroup* group : filled_) {
      for (const SharedPart& part : group->parts) {
        if (part.wall && !whole(part)) at = &group->place;
      }
    }
    return at;
  }
  void each(const std::function<void(const SharedPart&)>& f) const {
    for (const auto& [name, group] : groups_) {
      for (const SharedPart& part : group.parts) f(part);
    }
  }

 private:
  SharedMemory() {
    const ElfFile file(module_.path);
    const bool known = file.variables([&](std::string_view name, const Elf64_Sym& s) {
      const size_t own = name.find(kOwner);
      if (!name.starts_with("_ZZ") || own == std::string_view::npos) return;
      const std::string_view function = function_of(name, own);
      owners_.emplace(module_.base + s.st_value, function);
      groups_.try_emplace(std::string(function));
    });
    if (!known) {
      std::fprintf(stderr, "emulator: %s has no symbol table\n", module_.path.c_str());
      std::abort();
    }
    file.variables([&](std::string_view name, const Elf64_Sym& s) { add(name, s); });
  }
  // Adds a variable if its name begins like the name of a function with an owner.
  void add(std::string_view name, const Elf64_Sym& s) {
    if (!name.starts_with("_ZZ") || name.find(kOwner) != std::string_view::npos) return;
    const auto after = groups_.upper_bound(name);
    if (after == groups_.begin() || !name.starts_with(std::prev(after)->first)) return;
    if (name[std::prev(after)->first.size()] < '0' || name[std::prev(after)->first.size()] > '9') {
      return;
    }
    auto* const begin = reinterpret_cast<unsigned char*>(module_.base + s.st_value);
    const bool wall = name.find(kWallName) != std::string_view::npos;
    std::prev(after)->second.parts.push_back({begin, static_cast<size_t>(s.st_size), wall});
  }
  static bool whole(const SharedPart& wall) {
    return std::all_of(wall.begin, wall.begin + wall.bytes,
                       [](unsigned char byte) { return byte == kBrick; });
  }

  Module module_;
  std::map<std::string, SharedGroup, std::less<>> groups_;  // by the start of the names
  std::map<uintptr_t, std::string> owners_;
  std::vector<SharedGroup*> filled_;
  unsigned char garbage_ = 0;
};

}  // namespace

void SharedOwner::fill() {
  block_ = running_block;
  SharedMemory& memory = SharedMemory::get();
  if (group_ == nullptr) group_ = memory.group_of(this);
  if (group_ == nullptr) {
    std::fprintf(stderr, "emulator: no symbol of the shared memory at %s:%u\n", place_.file_name(),
                 place_.line());
    std::abort();
  }
  if (group_->block != running_block) memory.fill(*group_, place_);
}

void begin_shared_block(unsigned char garbage) { SharedMemory::get().begin_block(garbage); }
const std::source_location* broken_wall() { return SharedMemory::get().broken(); }
void for_each_shared(const std::function<void(const SharedPart&)>& f) {
  SharedMemory::get().each(f);
}

}  // namespace emulator
