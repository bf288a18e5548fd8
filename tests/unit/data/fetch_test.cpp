// Files at addresses: 200 server faults, each with the file's bytes or a one-line error as result;
// versions; signed requests; refused addresses.
#include <cstdlib>
#include <fstream>

#include "runtime/remote/cache.h"
#include "tests/support/data_files.h"
#include "tests/support/faulty_server.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {
namespace fetch_test {

using namespace testing_data;

constexpr size_t kBytes = 200000;

std::string made_bytes(uint64_t seed) {
  std::string bytes(kBytes, '\0');
  for (char& c : bytes) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    c = static_cast<char>(seed >> 56);
  }
  return bytes;
}

class FetchTest : public testing::Test {
 protected:
  FetchTest() {
    folder_.write("x.bin", bytes_);
    rules_.cache = cache_.path();
    rules_.first_pause = 0.001;
    rules_.stall_seconds = 1;
  }
  void SetUp() override {
    const auto parsed = fetch_file(server_.address("x.bin"), rules_);
    const bool absent = !parsed.ok() && parsed.error().kind() == ErrorKind::kInput;
    if (absent) GTEST_SKIP() << parsed.error().message();  // no libcurl
    ASSERT_TRUE(parsed.ok()) << parsed.error().message();
  }

  // The cache's files with a final name.
  std::vector<std::string> whole_files() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cache_.path())) {
      const std::string name = entry.path().filename().string();
      const bool own = name == "lock" || name == "facts.json" || name == "part";
      if (entry.is_regular_file() && !own) found.push_back(entry.path().string());
    }
    return found;
  }

  const std::string bytes_ = made_bytes(1);
  TempFolder folder_, cache_;
  FaultyServer server_{folder_.path()};
  FetchRules rules_;
};

TEST_F(FetchTest, FaultsLeaveTheFileOrOneLine) {
  const std::string reversed(bytes_.rbegin(), bytes_.rend());
  int fetched = 0, refused = 0;
  for (int seed = 0; seed < 200; ++seed) {
    const auto file = fetch_file(server_.address(format_text("x.bin?seed={}", seed)), rules_);
    if (file.ok()) {
      ++fetched;
      const std::string found = onnx_bytes::content(*file);
      EXPECT_TRUE(found == bytes_ || found == reversed) << "seed " << seed;
    } else {
      ++refused;
      const std::string& message = file.error().message();
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      EXPECT_THAT(message, testing::HasSubstr("/x.bin?seed="));
    }
  }
  EXPECT_GT(fetched, 150);
  EXPECT_GT(refused, 3);  // a server that sends no length
  for (const std::string& name : whole_files()) {
    const std::string found = onnx_bytes::content(name);
    EXPECT_TRUE(found == bytes_ || found == reversed) << name;
  }
}

TEST_F(FetchTest, FaultsThatStayEndWithALine) {
  const size_t before = whole_files().size();
  rules_.failures = 3;
  for (int seed = 1000; seed < 1012; ++seed) {
    const auto file = fetch_file(server_.address(format_text("x.bin?seed={}", seed)), rules_);
    if (file.ok()) {
      const std::string found = onnx_bytes::content(*file);
      EXPECT_EQ(found.size(), bytes_.size()) << "seed " << seed;
    } else {
      EXPECT_EQ(file.error().message().find('\n'), std::string::npos) << file.error().message();
    }
  }
  EXPECT_LT(whole_files().size(), before + 12);
  const auto failed = fetch_file(server_.address("fail/x.bin"), rules_);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().kind(), ErrorKind::kFault);
  EXPECT_THAT(failed.error().message(), testing::HasSubstr("the server answered 503"));
  EXPECT_EQ(server_.count("503 /fail/x.bin"), 3);
}

TEST_F(FetchTest, AFileIsFetchedOnceAndAgainIfItChanged) {
  const std::string address = server_.address("x.bin");
  const int before = server_.count("200 /x.bin");
  const auto first = fetch_file(address, rules_);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(server_.count("200 /x.bin"), before + 1);  // 304, noted like a 200
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  FetchRules trusting = rules_;
  trusting.since = 1;
  EXPECT_EQ(*fetch_file(address, trusting), *first);
  EXPECT_EQ(server_.count("200 /x.bin"), before + 1);
  folder_.write("x.bin", made_bytes(2));
  trusting.since = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() +
                   int64_t{3600} * 1000000000;
  const auto second = fetch_file(address, trusting);
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*second, *first);
  EXPECT_TRUE(onnx_bytes::content(*second) == made_bytes(2));
  EXPECT_TRUE(onnx_bytes::content(*first) == bytes_) << "a run may still read it";
}

TEST_F(FetchTest, RequestsToABucketAreSigned) {
  const std::pair<const char*, std::string> variables[] = {{"AWS_ENDPOINT_URL", server_.endpoint()},
                                                           {"AWS_ACCESS_KEY_ID", "test-key"},
                                                           {"AWS_SECRET_ACCESS_KEY", "test-secret"},
                                                           {"AWS_SESSION_TOKEN", "test-token"},
                                                           {"AWS_REGION", "eu-north-1"}};
  for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
  folder_.write("a key + more.bin", bytes_);
  for (const char* name : {"x.bin", "a key + more.bin"}) {
    const auto file = fetch_file(std::string("s3://bucket/") + name, rules_);
    ASSERT_TRUE(file.ok()) << file.error().message();
    EXPECT_TRUE(onnx_bytes::content(*file) == bytes_);
  }
  setenv("AWS_SECRET_ACCESS_KEY", "other", 1);
  expect_input_error(fetch_file("s3://bucket/x.bin", rules_),
                     {"s3://bucket/x.bin", "answered 403", "AWS_ACCESS_KEY_ID"});
  unsetenv("AWS_SECRET_ACCESS_KEY");
  expect_input_error(fetch_file("s3://bucket/x.bin", rules_), {"expected both AWS_ACCESS_KEY_ID"});
  for (const auto& [name, value] : variables) unsetenv(name);
  const auto amazon = parse_address("s3://bucket/a b/c.npy");
  ASSERT_TRUE(amazon.ok());
  EXPECT_EQ(amazon->url, "https://bucket.s3.us-east-1.amazonaws.com/a%20b/c.npy");
}

TEST_F(FetchTest, AddressesThatAreRefused) {
  expect_input_error(fetch_file(server_.address("none.bin"), rules_),
                     {"/none.bin: expected a file, the server answered 404: no such file there"});
  const std::pair<const char*, const char*> wrong[] = {
      {"http://example.org/x.npy", "expected https://, found http://"},
      {"gs://bucket/x.npy", "found gs://"},
      {"https://host", "expected the address of a file"},
      {"https://host/a/", "expected the address of a file"},
      {"https://host/../x", "not . and .."},
      {"https://host/a b", "without blanks"},
      {"https://me:secret@host/x.npy", "no user and password"}};
  for (const auto& [address, why] : wrong) {
    const auto parsed = parse_address(address);
    expect_input_error(Status(parsed.ok() ? ErrorKind::kFault : ErrorKind::kInput,
                              parsed.ok() ? "" : parsed.error().message()),
                       {why});
    if (!parsed.ok()) {
      EXPECT_EQ(parsed.error().message().find("secret"), std::string::npos);
    }
  }
  EXPECT_FALSE(is_address("data/x.npy"));
  EXPECT_FALSE(is_address("C:/x"));
  EXPECT_TRUE(is_address("s3://b/k"));
}

}  // namespace fetch_test
}  // namespace ofsdp
