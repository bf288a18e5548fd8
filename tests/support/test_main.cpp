// `main` of test programs with several test files.
//
//   test_unit                          all tests
//   test_unit --file=shape             the tests in one file, as CTest runs them
//
// GoogleTest's arguments follow or precede. Exit status 2: the file has no test, or two files
// define one name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>
#include <string_view>

namespace {

// Calls f(suite, test) for each test in the program.
template <typename F>
void for_each_test(const F& f) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) f(*suite.GetTestInfo(t));
  }
}

std::string name_of(const testing::TestInfo& test) {
  return std::string(test.test_suite_name()) + "." + test.name();
}

std::string file_of(const testing::TestInfo& test) {
  const std::string path = test.file();
  return path.substr(path.rfind('/') + 1);
}

// GoogleTest's filters tell tests apart only by name.
bool names_are_unique() {
  std::map<std::string, std::string> files;
  bool unique = true;
  for_each_test([&](const testing::TestInfo& test) {
    const auto [at, added] = files.emplace(name_of(test), file_of(test));
    if (added || at->second == file_of(test)) return;
    std::fprintf(stderr, "%s: expected one file, found %s and %s\n", at->first.c_str(),
                 at->second.c_str(), file_of(test).c_str());
    unique = false;
  });
  return unique;
}

// The tests in NAME.cpp or NAME_test.cpp.
std::string filter_for(const std::string& name) {
  std::string filter;
  for_each_test([&](const testing::TestInfo& test) {
    const std::string file = file_of(test);
    if (file != name + "_test.cpp" && file != name + ".cpp") return;
    filter += (filter.empty() ? "" : ":") + name_of(test);
  });
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  setenv("OFSDP_VERIFY_PASSES", "1", 0);      // importer/graph/verify.h; in child processes too
  setenv("OFSDP_RUN_DIR", "none", 0);         // runs without --output keep no folder
  setenv("OFSDP_SECRET", "of the tests", 0);  // for runs on several hosts, which warn without one
  if (!names_are_unique()) return 2;
  constexpr std::string_view kFlag = "--file=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool is_file = word.substr(0, kFlag.size()) == kFlag;
    const std::string filter = is_file ? filter_for(std::string(word.substr(kFlag.size()))) : "";
    if (filter.empty()) {
      std::fprintf(stderr, "%s: expected --file=NAME with a file of tests\n", argv[i]);
      return 2;
    }
    testing::GTEST_FLAG(filter) = filter;
  }
  return RUN_ALL_TESTS();
}
