# SPDX-License-Identifier: Apache-2.0
# The CANN backend: an operator project in the form that the toolkit's own build scripts expect (those of
# its msopgen template, CANN 8.1), configured, built and installed by them; pack.py takes the result.
# Status: written against the scripts of CANN 8.1.RC1; every source passes its headers (syntax only).
# No machine of this project has a toolkit, so this file has not been run.
set(project ${CMAKE_BINARY_DIR}/cann/project)
set(template ${FLA_CANN_HOME}/tools/op_project_templates/ascendc/customize)
set(common ${FLA_ASCENDC}/common)
file(REMOVE_RECURSE ${project})   # what an earlier configuration left must not be packed
file(COPY ${template}/cmake DESTINATION ${project})
file(COPY ${FLA_ASCENDC}/cmake/cann_project/CMakeLists.txt DESTINATION ${project})
file(GLOB host ${common}/host/*.cpp ${common}/host/*.h ${common}/cann/host_entry.*)
file(GLOB api ${common}/host/*.cpp ${common}/host/*.h ${common}/cann/l2_call.*)
file(GLOB shared ${common}/kernel/*.h)
file(COPY ${host} DESTINATION ${project}/op_host)
file(COPY ${api} DESTINATION ${project}/op_api)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${host} ${api} ${shared})

function(fla_add_op op op_type cores)
  set(dir ${FLA_ASCENDC}/ops/${op})
  set(generated ${FLA_GENERATED}/${op})
  file(GLOB plans ${dir}/op_host/* ${dir}/op_kernel/*_tiling_data.h ${generated}/${op}_contract.*)
  file(COPY ${plans} ${generated}/${op}_def.cpp ${generated}/${op}_tiling.cpp
    ${generated}/${op}_infershape.cpp DESTINATION ${project}/op_host)
  file(COPY ${plans} ${generated}/aclnn_${op}.h ${generated}/aclnn_${op}.cpp ${generated}/${op}_l0.h
    ${generated}/${op}_l0.cpp DESTINATION ${project}/op_api)
  # One folder per kernel, with the shared headers beside it: kernels include bare names.
  file(GLOB kernel ${dir}/op_kernel/*)
  file(COPY ${kernel} ${shared} DESTINATION ${project}/op_kernel/${op})
  file(APPEND ${project}/ops.cmake "list(APPEND FLA_OPS ${op_type}:${op})\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${plans} ${kernel})
endfunction()

function(fla_finish)
  set(build ${CMAKE_BINARY_DIR}/cann/build)
  # Makefiles: the toolkit's scripts pass $(MAKE) on. Jobs come from CMAKE_BUILD_PARALLEL_LEVEL.
  add_custom_target(cann_opp
    COMMAND ${CMAKE_COMMAND} -S ${project} -B ${build} -G "Unix Makefiles"
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=${CMAKE_BINARY_DIR}/cann/install
      -DASCEND_CANN_PACKAGE_PATH=${FLA_CANN_HOME} -DASCEND_PYTHON_EXECUTABLE=${Python3_EXECUTABLE}
      "-DASCEND_COMPUTE_UNIT=${FLA_SOCS}" -Dvendor_name=fla_npu
      -DFLA_BUILD_ID_SOURCE=${CMAKE_BINARY_DIR}/build_id.cpp
      -DENABLE_SOURCE_PACKAGE=OFF -DENABLE_BINARY_PACKAGE=ON
    COMMAND ${CMAKE_COMMAND} --build ${build}
    COMMAND ${CMAKE_COMMAND} --build ${build} --target binary
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${CMAKE_BINARY_DIR}/cann/install
    COMMAND ${CMAKE_COMMAND} --install ${build}
    COMMENT "Building the OPP with the CANN toolkit at ${FLA_CANN_HOME}" VERBATIM)
  add_dependencies(cann_opp fla_build_id)
  set_property(GLOBAL APPEND PROPERTY FLA_STEPS cann_opp)
endfunction()
