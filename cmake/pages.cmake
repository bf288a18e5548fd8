# The pages of runtime/report as text for its sources: NAME_page.html becomes kNamePage in
# generated/runtime/report/NAME_page_html.h in the build folder.
foreach(name plan run)
  set(page_file runtime/report/${name}_page.html)
  string(SUBSTRING ${name} 0 1 first)
  string(SUBSTRING ${name} 1 -1 rest)
  string(TOUPPER ${first} first)
  set(page_name k${first}${rest}Page)
  file(READ ${PROJECT_SOURCE_DIR}/${page_file} page_text)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/page_html.h.in
    ${PROJECT_BINARY_DIR}/generated/runtime/report/${name}_page_html.h @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${page_file})
endforeach()
