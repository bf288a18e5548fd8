#include "runtime/remote/cache.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "kernels/base/posix_file.h"
#include "kernels/base/text.h"
#include "runtime/remote/transfer.h"

namespace ofsdp::runtime {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kSince = "OFSDP_FETCHED_SINCE";
constexpr const char* kFilesFolder = "%";  // in the folder of an address
constexpr double kLongestPause = 8;        // seconds
constexpr int kMostAttempts = 200;         // whatever progress they make
constexpr size_t kBlockBytes = 1 << 20;

int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Result<fs::path> cache_folder(const Address& address) {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (cache.starts_with('/')) return fs::path(cache) / "onnx-fsdp";
  OFSDP_REJECT_IF(!home.starts_with('/'),
                  "{}: expected a folder for fetched files in XDG_CACHE_HOME or HOME, found none",
                  address.text);
  return fs::path(home) / ".cache/onnx-fsdp";
}

// Returns a name for a folder: no part of an address leads out of the cache or is hidden.
std::string folder_name(std::string_view part) {
  std::string name;
  for (const char c : part) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) != 0 ||
                       std::string_view("-_+=,").find(c) != std::string_view::npos ||
                       (c == '.' && !name.empty());
    name += plain ? std::string(1, c) : format_text("%{:02x}", static_cast<unsigned>(byte));
  }
  return name.empty() ? "%" : name.substr(0, 240);
}

std::string hex(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += format_text("{:02x}", static_cast<unsigned>(byte));
  return text;
}

std::string base64(std::span<const unsigned char> bytes) {
  std::string text(sodium_base64_ENCODED_LEN(bytes.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(),
                    sodium_base64_VARIANT_ORIGINAL);
  text.resize(text.find('\0'));
  return text;
}

std::string query_hash(const std::string& query) {
  std::array<unsigned char, crypto_hash_sha256_BYTES> hash{};
  crypto_hash_sha256(hash.data(), reinterpret_cast<const unsigned char*>(query.data()),
                     query.size());
  return hex(hash).substr(0, 16);
}

// The folder of an address, and the files in it.
struct CachePlace {
  fs::path folder;
  std::string name;  // of the file

  fs::path part() const { return folder / "part"; }
  fs::path lock() const { return folder / "lock"; }
  fs::path facts() const { return folder / "facts.json"; }
  fs::path whole(const std::string& sha256) const { return folder / sha256.substr(0, 16) / name; }
};

CachePlace place_of(const Address& address, const fs::path& cache) {
  fs::path folder = cache / address.scheme / folder_name(address.host);
  std::istringstream parts(address.path);
  for (std::string part; std::getline(parts, part, '/');) folder /= folder_name(part);
  if (!address.query.empty()) folder /= "%" + query_hash(address.query);
  return {folder / kFilesFolder, folder_name(address.file_name())};
}

// A version of a file, as answers describe it.
struct Version {
  std::string etag, modified;
  int64_t length = -1;        // not known before the end
  std::string sha256, crc32;  // base64; empty: the server gives none

  bool same(const Version& other) const {
    return etag == other.etag && modified == other.modified &&
           (length < 0 || other.length < 0 || length == other.length);
  }
  bool has_checksum() const { return !sha256.empty() || !crc32.empty(); }
  // A weak tag names no bytes.
  bool can_continue() const { return !etag.empty() && !etag.starts_with("W/"); }
};

std::optional<int64_t> decimal(std::string_view text) {
  int64_t value = 0;
  if (text.empty() || text.size() > 18) return std::nullopt;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = 10 * value + (c - '0');
  }
  return value;
}

// Content-Range: bytes 100-199/1000, or bytes */1000.
struct ContentRange {
  std::optional<int64_t> begin, total;
};

ContentRange content_range(std::string_view text) {
  ContentRange range;
  if (!text.starts_with("bytes ")) return range;
  text.remove_prefix(6);
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return range;
  range.begin = decimal(text.substr(0, text.find('-')));
  range.total = decimal(text.substr(slash + 1));
  return range;
}

// Returns the sha-256 of a Digest or Repr-Digest: "sha-256=:BASE64:, ..." or "SHA-256=BASE64".
std::string digest(const HttpAnswer& answer) {
  for (const char* name : {"repr-digest", "digest"}) {
    const std::string text = answer.header(name);
    std::string lower = text;
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const size_t at = lower.find("sha-256=");
    if (at == std::string::npos) continue;
    std::string value = text.substr(at + 8);
    if (value.starts_with(':')) value.erase(0, 1);
    return value.substr(0, value.find_first_of(":, "));
  }
  return "";
}

Version version_of(const HttpAnswer& answer) {
  Version version;
  version.etag = answer.header("etag");
  version.modified = answer.header("last-modified");
  const ContentRange range = content_range(answer.header("content-range"));
  const std::optional<int64_t> length =
      answer.status == 206 ? range.total : decimal(answer.header("content-length"));
  version.length = length.value_or(-1);
  version.sha256 = digest(answer);
  const auto amazon = [&](const char* name) {
    const std::string value = answer.header(name);
    return value.find('-') == std::string::npos ? value : "";  // of parts, not of the whole
  };
  if (version.sha256.empty()) version.sha256 = amazon("x-amz-checksum-sha256");
  version.crc32 = amazon("x-amz-checksum-crc32");
  return version;
}

// facts.json: the version that the cache has.
struct Facts {
  std::string etag, modified, sha256;
  int64_t length = -1, compared = 0;

  static std::optional<Facts> read(const CachePlace& place) {
    std::ifstream file(place.facts());
    const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return std::nullopt;
    Facts facts;
    const auto text = [&](const char* key) {
      return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
    };
    const auto number = [&](const char* key) {
      return json.contains(key) && json[key].is_number_integer() ? json[key].get<int64_t>() : -1;
    };
    facts = {text("etag"), text("modified"), text("sha256"), number("length"), number("compared")};
    std::error_code error;
    const bool there =
        facts.sha256.size() == 64 && facts.length >= 0 &&
        fs::file_size(place.whole(facts.sha256), error) == static_cast<uintmax_t>(facts.length);
    if (!there || error) return std::nullopt;
    return facts;
  }

  // Writes the facts whole or not at all.
  Status write(const CachePlace& place, const Address& address) const {
    const fs::path temporary = place.folder / "facts.new";
    {
      std::ofstream file(temporary);
      file << Json{{"address", address.text}, {"etag", etag},     {"modified", modified},
                   {"sha256", sha256},        {"length", length}, {"compared", compared}}
                  .dump(1, ' ', false, Json::error_handler_t::replace)
           << '\n';
      file.flush();
      OFSDP_FAULT_IF(!file, "{}: {} cannot be written: {}", address.text, temporary.string(),
                     std::strerror(errno));
    }
    std::error_code error;
    fs::rename(temporary, place.facts(), error);
    OFSDP_FAULT_IF(error, "{}: {} cannot be written: {}", address.text, place.facts().string(),
                   error.message());
    return {};
  }
};

// Fetches one file. The lock is held.
class Fetcher {
 public:
  Fetcher(const Address& address, CachePlace place, const FetchRules& rules, HttpClient& client)
      : address_(address), place_(std::move(place)), rules_(rules), client_(client) {}

  Result<std::string> run() {
    cached_ = Facts::read(place_);
    OFSDP_RETURN_IF_ERROR(open_part());
    Status status = transfer();
    std::error_code error;
    if (!status.ok() || unchanged_) fs::remove(place_.part(), error);
    if (!status.ok()) return status;
    if (unchanged_) {
      cached_->compared = nanoseconds_now();
      OFSDP_RETURN_IF_ERROR(cached_->write(place_, address_));
      return place_.whole(cached_->sha256).string();
    }
    return keep();
  }

 private:
  enum class Step { kDone, kAgain, kRestart };

  Status open_part() {
    part_ = UniqueFd(open(place_.part().c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    OFSDP_REJECT_IF(!part_.valid(), "{}: {} cannot be written: {}", address_.text,
                    place_.part().string(), std::strerror(errno));
    return {};
  }

  Status transfer() {
    int failures = 0;
    for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
      const int64_t before = have_;
      Step step = Step::kDone;
      if (!whole_) {
        OFSDP_ASSIGN_OR_RETURN(step, request());
        whole_ = step == Step::kDone;
      }
      if (step == Step::kDone && !unchanged_) {
        OFSDP_ASSIGN_OR_RETURN(step, verify());
      }
      if (step == Step::kDone) return {};
      if (step == Step::kRestart) {
        OFSDP_RETURN_IF_ERROR(restart());
        if (++changes_ >= rules_.changes) break;
      }
      failures = have_ > before ? 0 : failures + 1;
      if (failures >= rules_.failures) break;
      pause(failures);
    }
    return fault("{}: expected {}, found {} bytes: {}", address_.text,
                 version_.length < 0 ? "a file" : format_text("{} bytes", version_.length), have_,
                 escaped(reason_));
  }

  void pause(int failures) const {
    double seconds = rules_.first_pause;
    for (int i = 1; i < failures && seconds < kLongestPause; ++i) seconds *= 2;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(seconds, kLongestPause)));
  }

  Status restart() {
    have_ = 0;
    whole_ = false;
    version_ = {};
    OFSDP_FAULT_IF(ftruncate(part_.get(), 0) != 0, "{}: {} cannot be written: {}", address_.text,
                   place_.part().string(), std::strerror(errno));
    return {};
  }

  // One request: for the whole file, its rest, or whether it is still that of the cache.
  Result<Step> request() {
    std::vector<std::string> headers;
    if (have_ > 0 && !version_.can_continue()) OFSDP_RETURN_IF_ERROR(restart());
    if (have_ > 0) {
      headers.push_back(format_text("Range: bytes={}-", have_));
      headers.push_back("If-Range: " + version_.etag);
    } else if (cached_ && !cached_->etag.empty()) {
      headers.push_back("If-None-Match: " + cached_->etag);
    } else if (cached_ && !cached_->modified.empty()) {
      headers.push_back("If-Modified-Since: " + cached_->modified);
    }
    begun_ = changed_ = false;
    failed_ = {};
    const HttpAnswer answer =
        client_.get(headers, [this](const HttpAnswer& head, std::span<const std::byte> bytes) {
          return take(head, bytes);
        });
    if (!failed_.ok()) return std::move(failed_);
    return judge(answer);
  }

  // Takes a block of the body; at the first, looks at the version.
  bool take(const HttpAnswer& head, std::span<const std::byte> bytes) {
    if (!begun_) {
      begin(head);
      begun_ = true;
    }
    if (changed_ || !failed_.ok()) return false;
    if (version_.length >= 0 && have_ + std::ssize(bytes) > version_.length) {
      changed_ = true;
      reason_ = "the server sent more bytes than it had said";
      return false;
    }
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t wrote = pwrite(part_.get(), bytes.data() + done, bytes.size() - done, have_);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) {
        failed_ = fault("{}: {} cannot be written: {}", address_.text, place_.part().string(),
                        std::strerror(errno));
        return false;
      }
      done += static_cast<size_t>(wrote);
      have_ += wrote;
    }
    return true;
  }

  void begin(const HttpAnswer& head) {
    const std::string coding = head.header("content-encoding");
    if (!coding.empty() && coding != "identity") {
      failed_ = input_error("{}: expected the file as it is, found Content-Encoding {}",
                            address_.text, escaped(coding));
      return;
    }
    const Version now = version_of(head);
    if (head.status == 206) {
      const ContentRange range = content_range(head.header("content-range"));
      changed_ = have_ == 0 || !range.begin || *range.begin != have_ || !version_.same(now);
      if (changed_) reason_ = "the file changed while it was fetched";
      return;
    }
    // The whole file, also if a rest was asked for: it is another version, or ranges are unknown.
    const bool other = have_ > 0 && !version_.same(now);
    if (other) reason_ = "the file changed while it was fetched";
    const Status status = restart();
    if (!status.ok()) failed_ = fault("{}", status.message());
    version_ = now;
    changes_ += other ? 1 : 0;
    changed_ = changes_ >= rules_.changes;
  }

  // Decides by the answer to a request.
  Result<Step> judge(const HttpAnswer& answer) {
    const int status = answer.status;
    if (changed_) return Step::kRestart;
    const bool body = status == 200 || status == 206;
    if (body && !begun_) begin(answer);  // an empty file
    if (!failed_.ok()) return std::move(failed_);
    if (changed_) return Step::kRestart;
    if (!answer.failure.empty()) {
      reason_ = answer.failure;
      OFSDP_REJECT_IF(answer.lasting, "{}: the file cannot be fetched: {}", address_.text,
                      escaped(answer.failure));
      return Step::kAgain;
    }
    if (status == 304 && cached_ && have_ == 0) {
      unchanged_ = true;
      return Step::kDone;
    }
    if (!body) return judge_refusal(status);
    const bool chunked = answer.header("transfer-encoding").find("chunked") != std::string::npos;
    const bool framed = answer.header("http-version") >= "HTTP/2";
    OFSDP_REJECT_IF(version_.length < 0 && !chunked && !framed,
                    "{}: expected a server that says the file's length, found one that does not",
                    address_.text);
    if (version_.length < 0) version_.length = have_;
    if (have_ == version_.length) return Step::kDone;
    reason_ = "the transfer ended early";
    return Step::kAgain;
  }

  Result<Step> judge_refusal(int status) {
    reason_ = format_text("the server answered {}", status);
    if (status == 416) return Step::kRestart;  // it is shorter now
    if (status >= 500 || status == 408 || status == 425 || status == 429) return Step::kAgain;
    const char* const remedy =
        status == 404 || status == 410 ? ": no such file there"
        : status == 401 || status == 403
            ? (address_.scheme == "s3" ? ": look at AWS_ACCESS_KEY_ID and AWS_REGION"
                                       : ": it may not be read")
            : "";
    return input_error("{}: expected a file, the server answered {}{}", address_.text, status,
                       remedy);
  }

  // Compares the bytes with the server's checksum; without one asks for bytes after the end.
  Result<Step> verify() {
    OFSDP_RETURN_IF_ERROR(hash());
    if (version_.has_checksum()) {
      const bool good = (version_.sha256.empty() || version_.sha256 == base64(sha256_)) &&
                        (version_.crc32.empty() || version_.crc32 == base64(crc32_));
      if (good) return Step::kDone;
      reason_ = "the bytes have another checksum than the server says";
      return Step::kRestart;
    }
    if (have_ == 0) return Step::kDone;
    const HttpAnswer answer = client_.get({format_text("Range: bytes={}-", have_)},
                                          [](const HttpAnswer&, auto) { return false; });
    if (answer.status == 416) return same_end(content_range(answer.header("content-range")).total);
    if (answer.status == 200) return same_end(decimal(answer.header("content-length")));
    if (answer.status == 206) return same_end(have_ + 1);
    reason_ = answer.failure.empty() ? format_text("the server answered {}", answer.status)
                                     : answer.failure;
    return Step::kAgain;
  }

  Step same_end(std::optional<int64_t> total) {
    if (!total || *total == have_) return Step::kDone;
    reason_ = "the file is longer or shorter than the server had said";
    return Step::kRestart;
  }

  Status hash() {
    crypto_hash_sha256_state state;
    crypto_hash_sha256_init(&state);
    uLong crc = crc32(0, nullptr, 0);
    std::vector<unsigned char> block(kBlockBytes);
    for (int64_t at = 0; at < have_;) {
      const ssize_t got = pread(part_.get(), block.data(), block.size(), at);
      if (got < 0 && errno == EINTR) continue;
      OFSDP_FAULT_IF(got <= 0, "{}: {} cannot be read", address_.text, place_.part().string());
      crypto_hash_sha256_update(&state, block.data(), static_cast<unsigned long long>(got));
      crc = crc32(crc, block.data(), static_cast<uInt>(got));
      at += got;
    }
    crypto_hash_sha256_final(&state, sha256_.data());
    for (size_t i = 0; i < crc32_.size(); ++i) {
      crc32_[i] = static_cast<unsigned char>(crc >> (24 - 8 * i));
    }
    return {};
  }

  // Gives the file its name.
  Result<std::string> keep() {
    const std::string sum = hex(sha256_);
    const fs::path whole = place_.whole(sum);
    std::error_code error;
    fs::create_directories(whole.parent_path(), error);
    const bool synced = fsync(part_.get()) == 0;
    if (!error && synced) fs::rename(place_.part(), whole, error);
    OFSDP_FAULT_IF(error || !synced, "{}: {} cannot be written: {}", address_.text, whole.string(),
                   error ? error.message() : std::strerror(errno));
    const Facts facts{version_.etag, version_.modified, sum, have_, nanoseconds_now()};
    OFSDP_RETURN_IF_ERROR(facts.write(place_, address_));
    return whole.string();
  }

  const Address& address_;
  const CachePlace place_;
  const FetchRules& rules_;
  HttpClient& client_;
  std::optional<Facts> cached_;
  UniqueFd part_;
  int64_t have_ = 0;    // bytes in the part
  bool whole_ = false;  // they are all
  Version version_;     // of these bytes
  bool begun_ = false, changed_ = false, unchanged_ = false;
  int changes_ = 0;
  Status failed_;
  std::string reason_ = "no answer";
  std::array<unsigned char, crypto_hash_sha256_BYTES> sha256_{};
  std::array<unsigned char, 4> crc32_{};
};

// Returns the lock, which ends with the descriptor, or with the process.
Result<UniqueFd> lock(const Address& address, const CachePlace& place) {
  std::error_code error;
  fs::create_directories(place.folder, error);
  OFSDP_REJECT_IF(error, "{}: the folder {} for fetched files cannot be made: {}", address.text,
                  place.folder.string(), error.message());
  UniqueFd fd(open(place.lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  while (fd.valid() && flock(fd.get(), LOCK_EX) != 0) {
    if (errno != EINTR) fd.reset();
  }
  OFSDP_REJECT_IF(!fd.valid(), "{}: {} cannot be locked: {}", address.text, place.lock().string(),
                  std::strerror(errno));
  return fd;
}

}  // namespace

Result<std::string> fetch_file(const std::string& text, const FetchRules& rules) {
  OFSDP_ASSIGN_OR_RETURN(const Address address, parse_address(text));
  fs::path cache = rules.cache;
  if (cache.empty()) {
    OFSDP_ASSIGN_OR_RETURN(cache, cache_folder(address));
  }
  const CachePlace place = place_of(address, cache);
  OFSDP_ASSIGN_OR_RETURN(const UniqueFd locked, lock(address, place));
  const std::optional<Facts> cached = Facts::read(place);
  if (cached && rules.since > 0 && cached->compared >= rules.since) {
    return place.whole(cached->sha256).string();
  }
  OFSDP_ASSIGN_OR_RETURN(const auto client, HttpClient::open(address, rules.stall_seconds));
  return Fetcher(address, place, rules, *client).run();
}

Result<std::string> fetch_file(const std::string& address) {
  const char* const given = std::getenv(kSince);
  FetchRules rules;
  rules.since = decimal(given == nullptr ? "" : given).value_or(0);
  if (rules.since == 0) {
    rules.since = nanoseconds_now();
    setenv(kSince, std::to_string(rules.since).c_str(), 1);
  }
  return fetch_file(address, rules);
}

Result<std::string> local_file(const std::string& place) {
  if (!is_address(place)) return place;
  return fetch_file(place);
}

std::string address_of(const std::string& path) {
  const CachePlace place{fs::path(path).parent_path().parent_path(), ""};
  if (place.folder.filename() != kFilesFolder) return path;
  std::ifstream file(place.facts());
  const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("address") || !json["address"].is_string()) return path;
  // The text of a long address is cut.
  const Result<Address> address = parse_address(json["address"].get<std::string>());
  const bool whole =
      address.ok() && place.folder.string().ends_with("/" + place_of(*address, "").folder.string());
  return whole ? address->text : path;
}

}  // namespace ofsdp::runtime
