#include "fsdp/comm/store/job_secret.h"

#include <sodium.h>
#include <sys/stat.h>

#include <array>
#include <cstdlib>
#include <span>

#include "kernels/base/posix_file.h"
#include "kernels/base/reject.h"

namespace ofsdp::fsdp {
namespace {

constexpr size_t kNonceBytes = 32;

const unsigned char* raw_bytes(const std::string& text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string random_digits() {
  OFSDP_CHECK(sodium_init() >= 0, "libsodium cannot be used");
  std::array<unsigned char, kNonceBytes> bytes;
  randombytes_buf(bytes.data(), bytes.size());
  std::string digits(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(digits.data(), digits.size(), bytes.data(), bytes.size());
  digits.pop_back();
  return digits;
}

std::string without_line_end(std::string text) {
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}

Result<JobSecret> read_secret(const std::string& path) {
  const std::string subject = "OFSDP_SECRET_FILE=" + path;
  auto file = open_for_reading(path);
  if (!file.ok()) return input_error("OFSDP_SECRET_FILE: {}", file.error().message());
  struct stat found {};
  OFSDP_FAULT_IF(fstat(file->fd.get(), &found) != 0, "{}: cannot be read", subject);
  const unsigned rights = found.st_mode & 0777;
  OFSDP_REJECT_IF(
      (rights & 077) != 0,
      "{}: expected a file that its owner alone can read (mode 0600), found mode {:04o}", subject,
      rights);
  OFSDP_REJECT_IF(file->bytes < 1 || file->bytes > static_cast<int64_t>(JobSecret::kMaxBytes),
                  "{}: expected 1 to {} bytes, found {}", subject, JobSecret::kMaxBytes,
                  file->bytes);
  std::string text(static_cast<size_t>(file->bytes), '\0');
  OFSDP_RETURN_IF_ERROR(read_exactly(*file, 0, std::as_writable_bytes(std::span(text))));
  text = without_line_end(std::move(text));
  OFSDP_REJECT_IF(text.empty(), "{}: expected a secret, found an empty line", subject);
  return JobSecret(std::move(text));
}

}  // namespace

Result<JobSecret> JobSecret::from_environment() {
  const char* const path = std::getenv("OFSDP_SECRET_FILE");
  if (path != nullptr && *path != 0) return read_secret(path);
  const char* const text = std::getenv("OFSDP_SECRET");
  if (text == nullptr) return JobSecret();
  OFSDP_REJECT_IF(*text == 0, "OFSDP_SECRET: expected a secret, found nothing");
  return JobSecret(text);
}

JobSecret JobSecret::drawn() { return JobSecret(random_digits()); }

std::string JobSecret::refusal() const {
  return format_text(
      "expected the secret of its job in OFSDP_SECRET_FILE or OFSDP_SECRET, found {}",
      empty() ? "none" : "another");
}

std::string JobSecret::proof(const std::vector<std::string>& parts) const {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, raw_bytes(bytes_), bytes_.size());
  for (const std::string& part : parts) {
    const std::string framed = std::to_string(part.size()) + ":" + part;
    crypto_auth_hmacsha256_update(&state, raw_bytes(framed), framed.size());
  }
  std::array<unsigned char, crypto_auth_hmacsha256_BYTES> mac;
  crypto_auth_hmacsha256_final(&state, mac.data());
  std::array<char, 2 * mac.size() + 1> digits;
  sodium_bin2hex(digits.data(), digits.size(), mac.data(), mac.size());
  return digits.data();
}

bool JobSecret::proves(const std::string& claimed, const std::vector<std::string>& parts) const {
  const std::string right = proof(parts);
  return claimed.size() == right.size() &&
         sodium_memcmp(claimed.data(), right.data(), right.size()) == 0;
}

std::string drawn_nonce() { return random_digits(); }

}  // namespace ofsdp::fsdp
