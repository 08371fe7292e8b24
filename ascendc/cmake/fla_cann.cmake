# SPDX-License-Identifier: Apache-2.0
# The CANN backend: an operator project in the form that the toolkit's own build scripts expect (those of
# its msopgen template, CANN 8.1), configured, built and installed by them; pack.py takes the result.
# Written against the scripts of CANN 8.1.RC1; no machine of this project has a toolkit: not yet run with one.
set(project ${CMAKE_BINARY_DIR}/cann/project)
set(common ${FLA_ASCENDC}/common)
file(REMOVE_RECURSE ${project})   # what an earlier configuration left must not be packed
file(COPY ${FLA_CANN_HOME}/tools/op_project_templates/ascendc/customize/cmake
  ${FLA_ASCENDC}/cmake/cann_project/CMakeLists.txt DESTINATION ${project})
file(GLOB stages RELATIVE ${common}/stages ${common}/stages/*)
list(JOIN stages "|" stages)

# Copies sources into one folder, by patterns. The toolkit's kernel compiler is given no include path of ours:
# headers are found beside the file that includes them, so an include of a stage's header loses its folder.
function(fla_lay_out folder)
  file(GLOB files ${ARGN})
  foreach(file IN LISTS files)
    file(READ ${file} text)
    string(REGEX REPLACE "#include \"(stages|${stages})/" "#include \"" text "${text}")
    get_filename_component(name ${file} NAME)
    file(WRITE ${folder}/${name} "${text}")
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
endfunction()

set(host ${common}/host/*.cpp ${common}/host/*.h ${common}/host/stages/* ${common}/stages/*/*_tiling_data.h)
fla_lay_out(${project}/op_host ${host} ${common}/cann/host_entry.*)
fla_lay_out(${project}/op_api ${host} ${common}/cann/l2_call.*)

function(fla_add_op op op_type cores)
  set(dir ${FLA_ASCENDC}/ops/${op})
  set(generated ${FLA_GENERATED}/${op})
  set(plans ${dir}/op_host/* ${dir}/op_kernel/*_tiling_data.h ${generated}/${op}_contract.*)
  fla_lay_out(${project}/op_host ${plans} ${generated}/${op}_def.cpp ${generated}/${op}_tiling.cpp
    ${generated}/${op}_infershape.cpp)
  fla_lay_out(${project}/op_api ${plans} ${generated}/aclnn_${op}.* ${generated}/${op}_l0.*)
  fla_lay_out(${project}/op_kernel/${op} ${dir}/op_kernel/* ${common}/kernel/*.h ${common}/stages/*/*.h)
  file(APPEND ${project}/ops.cmake "list(APPEND FLA_OPS ${op_type}:${op})\n")
endfunction()

function(fla_finish)
  set(build ${CMAKE_BINARY_DIR}/cann/build)
  # Makefiles: the toolkit's scripts pass $(MAKE) on. Jobs come from CMAKE_BUILD_PARALLEL_LEVEL.
  add_custom_target(cann_opp
    COMMAND ${CMAKE_COMMAND} -S ${project} -B ${build} -G "Unix Makefiles"
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=${CMAKE_BINARY_DIR}/cann/install
      -DASCEND_CANN_PACKAGE_PATH=${FLA_CANN_HOME} -DASCEND_PYTHON_EXECUTABLE=${Python3_EXECUTABLE}
      "-DASCEND_COMPUTE_UNIT=${FLA_SOCS}" -Dvendor_name=fla_npu
      -DFLA_BUILD_ID_SOURCE=${CMAKE_BINARY_DIR}/build_id.cpp -DENABLE_SOURCE_PACKAGE=OFF -DENABLE_BINARY_PACKAGE=ON
    COMMAND ${CMAKE_COMMAND} --build ${build}
    COMMAND ${CMAKE_COMMAND} --build ${build} --target binary
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${CMAKE_BINARY_DIR}/cann/install
    COMMAND ${CMAKE_COMMAND} --install ${build}
    COMMENT "Building the OPP with the CANN toolkit at ${FLA_CANN_HOME}" VERBATIM)
  add_dependencies(cann_opp fla_build_id)
  set_property(GLOBAL APPEND PROPERTY FLA_STEPS cann_opp)
endfunction()
