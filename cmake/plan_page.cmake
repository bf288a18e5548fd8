# The page of `fsdp-run plan --html` as text for runtime/report/plan_json.cpp, in
# generated/runtime/report/plan_page_html.h in the build folder.
file(READ ${PROJECT_SOURCE_DIR}/runtime/report/plan_page.html PLAN_PAGE)
configure_file(${PROJECT_SOURCE_DIR}/cmake/plan_page_html.h.in
  ${PROJECT_BINARY_DIR}/generated/runtime/report/plan_page_html.h @ONLY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/runtime/report/plan_page.html)
