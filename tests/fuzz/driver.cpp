// Runs a fuzz target without libFuzzer: mutants of a corpus, for a while. The current input lies in
// `fuzz-input` in the current folder, so it is there after a crash.
//
//   fuzz_TARGET SECONDS SEED FILE-OR-FOLDER...     with SECONDS 0: the files as they are
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

constexpr size_t kMax = 1 << 18;  // bytes in an input

using Clock = std::chrono::steady_clock;

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> corpus_of(int count, char** names) {
  std::vector<std::filesystem::path> paths;
  for (int i = 0; i < count; ++i) {
    if (!std::filesystem::is_directory(names[i])) {
      paths.emplace_back(names[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(names[i])) {
      if (entry.is_regular_file() && entry.file_size() <= kMax) paths.push_back(entry.path());
    }
  }
  std::ranges::sort(paths);
  std::vector<std::string> corpus;
  for (const auto& path : paths) corpus.push_back(read(path));
  return corpus;
}

void flip(std::string& bytes, std::mt19937& random) {
  constexpr int64_t kNumbers[] = {0, -1, 1, 127, 255, 65535, INT32_MAX, INT32_MIN, INT64_MAX};
  const size_t at = bytes.empty() ? 0 : random() % bytes.size();
  switch (random() % 5) {
    case 0:
      bytes.insert(at, 1 + random() % 8, static_cast<char>(random()));
      return;
    case 1:
      bytes.erase(at, 1 + random() % 8);
      return;
    case 2: {
      const int64_t value = kNumbers[random() % std::size(kNumbers)];
      const size_t size = std::min(size_t{1} << random() % 4, bytes.size() - at);
      std::memcpy(bytes.data() + at, &value, size);
      return;
    }
    case 3:
      bytes += bytes.substr(at, 64);
      return;
    default:
      if (!bytes.empty()) bytes[at] = static_cast<char>(random());
  }
}

std::string mutated(std::string bytes, std::mt19937& random) {
  if (LLVMFuzzerCustomMutator != nullptr) {
    const size_t size = bytes.size();
    bytes.resize(kMax);
    auto* data = reinterpret_cast<uint8_t*>(bytes.data());
    bytes.resize(LLVMFuzzerCustomMutator(data, size, kMax, static_cast<unsigned>(random())));
    return bytes;
  }
  for (unsigned i = 0, count = 1 + random() % 4; i < count; ++i) flip(bytes, random);
  return bytes;
}

void try_one(const std::string& bytes) {
  std::ofstream("fuzz-input", std::ios::binary | std::ios::trunc) << bytes;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "%s SECONDS SEED FILE-OR-FOLDER...\n", argv[0]);
    return 2;
  }
  const std::vector<std::string> corpus = corpus_of(argc - 3, argv + 3);
  if (corpus.empty()) return 2;
  for (const std::string& bytes : corpus) try_one(bytes);
  size_t count = corpus.size();
  const auto end = Clock::now() + std::chrono::seconds(std::atoi(argv[1]));
  for (auto seed = static_cast<uint32_t>(std::atoi(argv[2])); Clock::now() < end; ++seed, ++count) {
    std::mt19937 random(seed);
    try_one(mutated(corpus[random() % corpus.size()], random));
  }
  std::printf("%zu inputs\n", count);
  std::filesystem::remove("fuzz-input");
  return 0;
}
