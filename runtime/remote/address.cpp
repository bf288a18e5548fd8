#include "runtime/remote/address.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <sstream>

#include "kernels/base/text.h"

namespace ofsdp::runtime {
namespace {

constexpr size_t kMostText = 2000;  // bytes of an address
constexpr size_t kMostName = 200;   // bytes between two slashes, which become a folder's name

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns the first variable that is set.
std::string first_variable(std::initializer_list<const char*> names, const char* otherwise = "") {
  for (const char* name : names) {
    const std::string value = variable(name);
    if (!value.empty()) return value;
  }
  return otherwise;
}

// Encodes bytes of a key as RFC 3986 does, but not '/'.
std::string encoded(std::string_view key) {
  std::string text;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain =
        std::isalnum(byte) != 0 || std::string_view("-_.~/").find(c) != std::string_view::npos;
    text += plain ? std::string(1, c) : format_text("%{:02X}", static_cast<unsigned>(byte));
  }
  return text;
}

bool is_this_machine(std::string_view host) {
  const std::string_view name =
      host.substr(0, host.starts_with('[') ? host.find(']') + 1 : host.rfind(':'));
  return name == "localhost" || name == "127.0.0.1" || name == "[::1]";
}

// Splits HOST/PATH?QUERY. A fragment is no part of a request; keys of S3 may have any byte.
Status split(std::string_view rest, Address& address) {
  if (address.scheme != "s3") rest = rest.substr(0, rest.find('#'));
  const size_t slash = rest.find('/');
  address.host = rest.substr(0, slash);
  std::string_view path = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
  const size_t question = address.scheme == "s3" ? std::string_view::npos : path.find('?');
  if (question != std::string_view::npos) {
    address.query = path.substr(question + 1);
    path = path.substr(0, question);
  }
  address.path = path;
  OFSDP_REJECT_IF(address.host.empty() || address.file_name().empty(),
                  "{}: expected the address of a file, {}://HOST/FILE, found none", address.text,
                  address.scheme);
  std::istringstream names(address.path);
  for (std::string name; std::getline(names, name, '/');) {
    OFSDP_REJECT_IF(name == "." || name == ".." || name.size() > kMostName,
                    "{}: expected names of at most {} bytes, not . and .., found '{}'",
                    address.text, kMostName, name.substr(0, 40));
  }
  return {};
}

// The requests of s3://BUCKET/KEY.
Status place_bucket(Address& address) {
  address.keys.region = first_variable({"AWS_REGION", "AWS_DEFAULT_REGION"}, "us-east-1");
  address.keys.id = variable("AWS_ACCESS_KEY_ID");
  address.keys.secret = variable("AWS_SECRET_ACCESS_KEY");
  address.keys.token = variable("AWS_SESSION_TOKEN");
  OFSDP_REJECT_IF(address.keys.id.empty() != address.keys.secret.empty(),
                  "{}: expected both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, found one",
                  address.text);
  std::string endpoint = first_variable({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const std::string key = encoded(address.path);
  if (endpoint.empty()) {
    const std::string amazon = format_text("s3.{}.amazonaws.com", address.keys.region);
    const bool dots = address.host.find('.') != std::string::npos;  // no certificate has them
    address.url = dots ? format_text("https://{}/{}/{}", amazon, address.host, key)
                       : format_text("https://{}.{}/{}", address.host, amazon, key);
    return {};
  }
  OFSDP_REJECT_IF(!endpoint.starts_with("https://") && !endpoint.starts_with("http://"),
                  "{}: AWS_ENDPOINT_URL: expected https://HOST or http://HOST, found '{}'",
                  address.text, escaped(endpoint));
  address.url = format_text("{}/{}/{}", endpoint, encoded(address.host), key);
  return {};
}

// Hides what stands before '@' of the host.
std::string shown_address(const std::string& text) {
  const size_t begin = text.find("://") + 3, end = text.find_first_of("/?#", begin);
  const size_t at = text.substr(0, end).rfind('@');
  if (at == std::string::npos || at < begin) return escaped(text);
  return escaped(text.substr(0, begin) + "..." + text.substr(at));
}

}  // namespace

bool is_address(std::string_view text) {
  const size_t end = text.find("://");
  if (end == std::string_view::npos || end == 0) return false;
  return std::ranges::all_of(text.substr(0, end), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '-' || c == '.';
  });
}

Result<Address> parse_address(const std::string& text) {
  Address address;
  address.text = shown_address(text).substr(0, 200);
  const size_t end = text.find("://");
  address.scheme = text.substr(0, end);
  std::ranges::transform(address.scheme, address.scheme.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool known =
      address.scheme == "https" || address.scheme == "http" || address.scheme == "s3";
  OFSDP_REJECT_IF(!known || text.size() > kMostText,
                  "{}: expected a path, https:// or s3:// of at most {} bytes, found {}://",
                  address.text, kMostText, escaped(address.scheme.substr(0, 20)));
  const bool clean = std::ranges::none_of(
      text, [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == 127; });
  OFSDP_REJECT_IF(!clean && address.scheme != "s3",
                  "{}: expected an address without blanks (%20 is one), found some", address.text);
  OFSDP_RETURN_IF_ERROR(split(std::string_view(text).substr(end + 3), address));
  OFSDP_REJECT_IF(address.host.find('@') != std::string::npos,
                  "{}: expected no user and password in the address, found them", address.text);
  if (address.scheme == "s3") {
    OFSDP_RETURN_IF_ERROR(place_bucket(address));
    return address;
  }
  OFSDP_REJECT_IF(
      address.scheme == "http" && !is_this_machine(address.host),
      "{}: expected https://, found http://, which only this machine's servers may have",
      address.text);
  address.url = text.substr(0, text.find('#'));
  return address;
}

std::string address_in(const std::string& folder, const std::string& name) {
  return format_text("{}{}{}", folder, folder.ends_with('/') ? "" : "/", name);
}

}  // namespace ofsdp::runtime
