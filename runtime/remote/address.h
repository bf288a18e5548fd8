// Address: a file at https://HOST/PATH or s3://BUCKET/KEY, and how a request names it.
//
// s3:// follows the variables that AWS's programs follow: AWS_ENDPOINT_URL (then the bucket is the
// path's first part), AWS_REGION or AWS_DEFAULT_REGION, and the keys AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; without keys a request is not signed. http:// is for
// this machine, and for an endpoint that the variable names.
//
// Errors: kInput with the address; user and password in it are not shown.
#pragma once

#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace ofsdp::runtime {

// Signs requests (AWS signature version 4).
struct SigningKeys {
  std::string id, secret, token;  // no token: empty
  std::string region;
};

struct Address {
  std::string text;    // as given, for messages
  std::string url;     // of a request
  std::string scheme;  // "https", "http" or "s3"
  std::string host;    // with the port; of s3 the bucket
  std::string path;    // after the host, without the first '/'; no "." or ".." in it
  std::string query;   // after '?'
  SigningKeys keys;    // id is empty: requests are not signed

  std::string file_name() const { return path.substr(path.rfind('/') + 1); }
};

// Returns whether text names a scheme: "https://...", also one that is not read.
bool is_address(std::string_view text);

Result<Address> parse_address(const std::string& text);

// Returns the address of a file that `folder`, an address, names relative to it.
std::string address_in(const std::string& folder, const std::string& name);

}  // namespace ofsdp::runtime
